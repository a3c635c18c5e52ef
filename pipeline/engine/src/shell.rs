//! Words for a POSIX shell: what an error or a report tells the user to type can be copied as it is.

use std::borrow::Cow;

/// `word` as a shell reads it back: unchanged when nothing in it is special, else in single quotes
/// (POSIX.1-2017, Shell Command Language, 2.2).
#[must_use]
pub fn quote(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./,:=@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

/// Words as one command line.
#[must_use]
pub fn line<W: AsRef<str>>(words: impl IntoIterator<Item = W>) -> String {
    let words: Vec<String> = words.into_iter().map(|word| quote(word.as_ref()).into_owned()).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cancel::Cancel;
    use crate::process::Program;

    #[test]
    fn only_words_that_a_shell_would_split_or_expand_are_quoted() {
        for word in ["kdelta-runs/demo-20260101T000000Z", "--set", "patch=a.patch", "git:/src/linux@x,y%+"] {
            assert_eq!(quote(word), word);
        }
        assert_eq!(quote("my runs/a"), "'my runs/a'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote("~/$HOME;*"), "'~/$HOME;*'");
        assert_eq!(quote(""), "''");
        assert_eq!(line(["kdelta", "--mkfs", "-n parent=1"]), "kdelta --mkfs '-n parent=1'");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]

        #[test]
        fn a_shell_reads_back_what_was_quoted(words in proptest::collection::vec("[^\\x00]{0,12}", 1..40)) {
            let script = format!("printf '%s\\0' {}", line(&words));
            let output = Program::new("sh").arg("-c").arg(script).output(&Cancel::default()).expect("sh");
            let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
            prop_assert_eq!(output.stdout, expected.into_bytes());
        }
    }
}
