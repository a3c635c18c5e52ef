//! How numbers are written: enough digits to see a change of 0.1 %, no more.

use kdelta_model::Estimate;

/// `62,380.4`: thousands separated, one decimal below 100,000, none above.
pub fn value(number: f64) -> String {
    let text = if number.abs() < 100_000.0 { format!("{number:.1}") } else { format!("{number:.0}") };
    grouped(&text)
}

/// A standard deviation, with three significant digits below 100: `0.0121`, `4.20`, `1,234.0`.
pub fn spread(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        size if size < 1.0 => format!("{number:.4}"),
        size if size < 100.0 => format!("{number:.2}"),
        _ => value(number),
    }
}

/// `+4.31 %`; changes below 0.01 % get as many digits as it takes to see them, an exact zero none.
pub fn percent(number: f64) -> String {
    if number == 0.0 {
        return "0 %".to_owned();
    }
    let digits = match number.abs() {
        size if size >= 0.01 => 2,
        size if size >= 0.000_1 => 4,
        _ => 6,
    };
    format!("{number:+.digits$} %")
}

/// `[+4.30, +4.33]`, in percent.
pub fn interval((low, high): (f64, f64)) -> String {
    let digits = if low.abs().max(high.abs()) >= 0.01 { 2 } else { 4 };
    format!("[{low:+.digits$}, {high:+.digits$}]")
}

/// Point estimate with its interval, or with the range over seeds when there is no interval.
pub fn estimate(estimate: &Estimate) -> String {
    let point = percent(estimate.percent);
    match (estimate.interval, estimate.seed_range) {
        _ if estimate.exact => format!("{point} (exact)"),
        (Some(bounds), _) => format!("{point} {}", interval(bounds)),
        (None, Some(range)) => format!("{point} (seeds {})", interval(range)),
        (None, None) => point,
    }
}

fn grouped(text: &str) -> String {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let (whole, fraction) =
        digits.split_once('.').map_or((digits, None), |(whole, part)| (whole, Some(part)));
    let mut out = String::from(sign);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_show_a_tenth_of_a_percent() {
        assert_eq!(value(797.44), "797.4");
        assert_eq!(value(62_380.26), "62,380.3");
        assert_eq!(value(1_234_567.8), "1,234,568");
        assert_eq!(value(-1234.0), "-1,234.0");
    }

    #[test]
    fn small_changes_are_not_rounded_to_nothing() {
        assert_eq!(percent(4.308), "+4.31 %");
        assert_eq!(percent(-0.00123), "-0.0012 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(0.000_001_2), "+0.000001 %");
    }
}
