//! Conditions of the Kconfig language and their value under a configuration. Read [`Expression`]
//! first, then [`Expression::value`].

use std::collections::HashMap;
use std::fmt;

use super::number;

/// Parentheses and `!` deeper than this are not followed: no kernel has them.
const DEPTH: usize = 64;

/// What an option can be, in the order that `&&` and `||` use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tristate {
    No,
    Module,
    Yes,
}

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expression {
    /// The value of an option.
    Symbol(String),
    /// `y`, `m`, `n` or a quoted text.
    Constant(String),
    /// `$(…)` or something that is not understood; counts as met.
    Unknown(String),
    Not(Box<Expression>),
    All(Vec<Expression>),
    Any(Vec<Expression>),
    /// `A = B` and its kind.
    Compare(Box<Expression>, &'static str, Box<Expression>),
}

/// The values of a configuration, by name.
pub(super) type Values<'c> = HashMap<&'c str, &'c str>;

impl Expression {
    /// Reads a condition; what cannot be read becomes [`Expression::Unknown`].
    pub(super) fn parse(text: &str) -> Self {
        let mut parser = Parser { tokens: tokens(text), at: 0 };
        match parser.any(0) {
            Some(expression) if parser.at == parser.tokens.len() => expression,
            _ => Self::Unknown(text.trim().to_owned()),
        }
    }

    pub(super) fn value(&self, values: &Values) -> Tristate {
        match self {
            Self::Symbol(name) => tristate(values.get(name.as_str()).copied().unwrap_or("n")),
            Self::Constant(text) => tristate(text),
            Self::Unknown(_) => Tristate::Yes,
            Self::Not(inner) => match inner.value(values) {
                Tristate::No => Tristate::Yes,
                Tristate::Module => Tristate::Module,
                Tristate::Yes => Tristate::No,
            },
            Self::All(parts) => parts.iter().map(|part| part.value(values)).min().unwrap_or(Tristate::Yes),
            Self::Any(parts) => parts.iter().map(|part| part.value(values)).max().unwrap_or(Tristate::No),
            Self::Compare(left, operator, right) => {
                if [left, right].iter().any(|side| matches!(***side, Self::Unknown(_))) {
                    return Tristate::Yes;
                }
                let (left, right) = (left.text(right, values), right.text(left, values));
                let order = match (number(&left), number(&right)) {
                    (Some(left), Some(right)) => left.cmp(&right),
                    _ => left.cmp(&right),
                };
                let holds = match *operator {
                    "=" => order.is_eq(),
                    "!=" => order.is_ne(),
                    "<" => order.is_lt(),
                    "<=" => order.is_le(),
                    ">" => order.is_gt(),
                    _ => order.is_ge(),
                };
                if holds { Tristate::Yes } else { Tristate::No }
            }
        }
    }

    /// The conditions that must all hold.
    pub(super) fn conjuncts(&self) -> Vec<&Self> {
        match self {
            Self::All(parts) => parts.iter().flat_map(Self::conjuncts).collect(),
            other => vec![other],
        }
    }

    /// The options it is about.
    pub(super) fn symbols(&self) -> Vec<&str> {
        match self {
            Self::Symbol(name) => vec![name],
            Self::Constant(_) | Self::Unknown(_) => Vec::new(),
            Self::Not(inner) => inner.symbols(),
            Self::All(parts) | Self::Any(parts) => parts.iter().flat_map(Self::symbols).collect(),
            Self::Compare(left, _, right) => [left.symbols(), right.symbols()].concat(),
        }
    }

    /// The side of a comparison as text. An option that is off is `n` beside y, m or n, and empty
    /// beside a text.
    fn text(&self, other: &Self, values: &Values) -> String {
        let bare = |text: &str| text.trim_matches('"').to_owned();
        match self {
            Self::Symbol(name) => match values.get(name.as_str()) {
                Some(value) => bare(value),
                None if matches!(other, Self::Constant(text) if !matches!(text.as_str(), "y" | "m" | "n")) => {
                    String::new()
                }
                None => "n".into(),
            },
            Self::Constant(text) | Self::Unknown(text) => bare(text),
            _ => String::new(),
        }
    }
}

fn tristate(text: &str) -> Tristate {
    match text {
        "y" => Tristate::Yes,
        "m" => Tristate::Module,
        _ => Tristate::No,
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, parts: &[Self], operator: &str| {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    write!(f, " {operator} ")?;
                }
                match part {
                    Self::All(_) | Self::Any(_) => write!(f, "({part})")?,
                    _ => write!(f, "{part}")?,
                }
            }
            Ok(())
        };
        match self {
            Self::Symbol(name) => f.write_str(name),
            Self::Constant(text) if matches!(text.as_str(), "y" | "m" | "n") => f.write_str(text),
            Self::Constant(text) => write!(f, "\"{text}\""),
            Self::Unknown(text) => f.write_str(text),
            Self::Not(inner) if matches!(**inner, Self::All(_) | Self::Any(_)) => write!(f, "!({inner})"),
            Self::Not(inner) => write!(f, "!{inner}"),
            Self::All(parts) => list(f, parts, "&&"),
            Self::Any(parts) => list(f, parts, "||"),
            Self::Compare(left, operator, right) => write!(f, "{left} {operator} {right}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Operator(&'static str),
    Word(String),
    Text(String),
    Macro(String),
}

fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    let operators = ["&&", "||", "!=", "<=", ">=", "(", ")", "!", "=", "<", ">"];
    while !rest.is_empty() {
        let (token, length) = if let Some(operator) = operators.iter().find(|mark| rest.starts_with(**mark)) {
            (Token::Operator(operator), operator.len())
        } else if let Some(quote) = rest.chars().next().filter(|c| matches!(c, '"' | '\'')) {
            let end = rest[1..].find(quote).map_or(rest.len(), |at| at + 1);
            (Token::Text(rest[1..end].to_owned()), (end + 1).min(rest.len()))
        } else if rest.starts_with("$(") {
            let end = macro_end(rest);
            (Token::Macro(rest[..end].to_owned()), end)
        } else if rest.starts_with('#') {
            break;
        } else {
            let stops = |c: char| c.is_whitespace() || "&|!=<>()\"'".contains(c);
            // A lone & or | is no operator; it must still be stepped over.
            let first = rest.chars().next().map_or(1, char::len_utf8);
            let end = rest.find(stops).unwrap_or(rest.len()).max(first);
            (Token::Word(rest[..end].to_owned()), end)
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    tokens
}

/// Length of a `$(…)` with its inner parentheses.
pub(super) fn macro_end(text: &str) -> usize {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' if depth <= 1 => return at + 1,
            ')' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn operator(&mut self, wanted: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Operator(mark)) if *mark == wanted);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self, depth: usize) -> Option<Expression> {
        let mut parts = vec![self.all(depth)?];
        while self.operator("||") {
            parts.push(self.all(depth)?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn all(&mut self, depth: usize) -> Option<Expression> {
        let mut parts = vec![self.not(depth)?];
        while self.operator("&&") {
            parts.push(self.not(depth)?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn not(&mut self, depth: usize) -> Option<Expression> {
        if depth > DEPTH {
            return None;
        }
        if self.operator("!") {
            return Some(Expression::Not(Box::new(self.not(depth + 1)?)));
        }
        if self.operator("(") {
            let inner = self.any(depth + 1)?;
            return self.operator(")").then_some(inner);
        }
        let left = self.atom()?;
        for operator in ["=", "!=", "<=", ">=", "<", ">"] {
            if self.operator(operator) {
                let right = self.atom()?;
                return Some(Expression::Compare(Box::new(left), operator, Box::new(right)));
            }
        }
        Some(left)
    }

    fn atom(&mut self) -> Option<Expression> {
        let atom = match self.tokens.get(self.at)? {
            Token::Operator(_) => return None,
            Token::Text(text) => Expression::Constant(text.clone()),
            Token::Macro(text) => Expression::Unknown(text.clone()),
            Token::Word(word) if matches!(word.as_str(), "y" | "m" | "n") || number(word).is_some() => {
                Expression::Constant(word.clone())
            }
            Token::Word(word) => Expression::Symbol(word.clone()),
        };
        self.at += 1;
        Some(atom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: Tristate) {
        let config = "CONFIG_A=y\nCONFIG_M=m\nCONFIG_S=\"x86\"\nCONFIG_V=140200\n";
        let expression = Expression::parse(text);
        assert_eq!(expression.value(&super::super::values(config)), expected, "{text}: {expression:?}");
    }

    #[test]
    fn conditions_have_three_values() {
        check("A", Tristate::Yes);
        check("B", Tristate::No);
        check("A && M", Tristate::Module);
        check("B || M", Tristate::Module);
        check("!M", Tristate::Module);
        check("!B && (B || A)", Tristate::Yes);
        check("B=n && A!=n && M = m", Tristate::Yes);
        check("S = \"x86\" && S != \"arm\"", Tristate::Yes);
        check("B != \"\"", Tristate::No);
        check("V >= 90000 && !(V < 100000)", Tristate::Yes);
        check("$(cc-option,-fx (y)) && A", Tristate::Yes);
        check("A &&", Tristate::Yes);
    }

    #[test]
    fn a_condition_is_written_as_it_was_read() {
        for text in ["A && (B || !C)", "!(A && B)", "A = \"x\" || B != n", "$(success,x)"] {
            assert_eq!(Expression::parse(text).to_string(), text);
        }
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        check(&"(".repeat(100_000), Tristate::Yes);
        check(&"!".repeat(100_000), Tristate::Yes);
        check(&"(!".repeat(100_000), Tristate::Yes);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_text_is_read_without_a_panic(text in "([()!&|=<>\"'$ ]|[A-Zymn]{1,3}|\\PC){0,200}") {
            let expression = Expression::parse(&text);
            let _ = (expression.value(&Values::new()), expression.to_string());
        }

    }
}
