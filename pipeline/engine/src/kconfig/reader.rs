//! Reads the Kconfig files of a kernel tree as far as conditions need it. Read [`Kconfig`] first,
//! then [`Definition`].

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::KconfigError;
use super::expression::{Expression, macro_end};

/// Files read at most; a kernel has 1,700.
const FILES: usize = 50_000;

/// All options that a kernel tree defines for one architecture.
#[derive(Debug)]
pub struct Kconfig {
    /// `x86`, as in `arch/x86`.
    pub(super) arch: String,
    pub(super) definitions: BTreeMap<String, Vec<Definition>>,
    /// Who selects a symbol, and when.
    pub(super) selectors: HashMap<String, Vec<(String, Expression)>>,
    pub(super) choices: Vec<Choice>,
}

/// One `config` block. A symbol may have several.
#[derive(Clone, Debug, Default)]
pub(super) struct Definition {
    /// When the user is asked; `None` without a prompt.
    pub(super) prompt: Option<Expression>,
    /// Conditions of the block and of all that encloses it, outermost first.
    pub(super) depends: Vec<Arc<Expression>>,
    /// Conditions for the question to be asked at all.
    pub(super) visible: Vec<Arc<Expression>>,
    /// Values it takes when not asked, and when.
    pub(super) defaults: Vec<(Expression, Expression)>,
    /// `tristate`, `bool`, `string` and so on.
    pub(super) kind: String,
    /// Index of the choice that it is a member of.
    pub(super) choice: Option<usize>,
}

/// A question with one answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) prompt: String,
    pub(super) members: Vec<String>,
}

impl Kconfig {
    /// Reads `tree/Kconfig` and what it includes. `source_arch` is the folder below `arch/`.
    ///
    /// # Errors
    /// When `tree/Kconfig` cannot be read.
    pub fn read(tree: &Utf8Path, source_arch: &str) -> Result<Self, KconfigError> {
        let top = tree.join("Kconfig");
        if let Err(source) = fs::metadata(&top) {
            return Err(KconfigError::Tree { path: top, source });
        }
        let kconfig = Self {
            arch: source_arch.to_owned(),
            definitions: BTreeMap::new(),
            selectors: HashMap::new(),
            choices: Vec::new(),
        };
        let mut reader = Reader {
            tree: tree.to_owned(),
            kconfig,
            scopes: Vec::new(),
            current: Current::Nothing,
            open: Vec::new(),
            files: 0,
        };
        reader.file(Utf8Path::new("Kconfig"));
        reader.finish();
        Ok(reader.kconfig)
    }
}

/// An `if`, `menu` or `choice` that is open.
#[derive(Debug, Default)]
struct Scope {
    depends: Vec<Arc<Expression>>,
    visible: Vec<Arc<Expression>>,
    choice: Option<usize>,
}

/// What attribute lines belong to.
enum Current {
    Nothing,
    Scope,
    Symbol(String, Definition),
}

struct Reader {
    tree: Utf8PathBuf,
    kconfig: Kconfig,
    scopes: Vec<Scope>,
    current: Current,
    /// Files being read, against cycles.
    open: Vec<Utf8PathBuf>,
    files: usize,
}

impl Reader {
    /// Reads one file in the middle of another; one that is missing is left out.
    fn file(&mut self, path: &Utf8Path) {
        self.files += 1;
        if self.files > FILES || self.open.iter().any(|open| open == path) {
            return;
        }
        let Ok(bytes) = fs::read(self.tree.join(path)) else { return };
        let text = String::from_utf8_lossy(&bytes);
        self.open.push(path.to_owned());
        let mut lines = text.lines();
        let mut next = lines.next();
        while let Some(line) = next {
            let mut whole = line.trim_end().to_owned();
            next = lines.next();
            while let Some(start) = whole.strip_suffix('\\') {
                whole = format!("{start} {}", next.unwrap_or_default().trim());
                next = lines.next();
            }
            let line = whole.trim();
            if line == "help" || line == "---help---" {
                // The help ends where the indentation is less than that of its first line.
                let mut first = None;
                while let Some(line) = next {
                    if !line.trim().is_empty() {
                        let depth = indentation(line);
                        if depth == 0 || depth < *first.get_or_insert(depth) {
                            break;
                        }
                    }
                    next = lines.next();
                }
            } else if !line.is_empty() && !line.starts_with('#') {
                self.line(line, path);
            }
        }
        self.open.pop();
    }

    fn line(&mut self, line: &str, path: &Utf8Path) {
        let (keyword, rest) = line.split_once([' ', '\t']).unwrap_or((line, ""));
        let rest = rest.trim();
        match keyword {
            "config" | "menuconfig" => {
                self.finish();
                let definition = Definition {
                    depends: self.scopes.iter().flat_map(|scope| scope.depends.iter().cloned()).collect(),
                    visible: self.scopes.iter().flat_map(|scope| scope.visible.iter().cloned()).collect(),
                    choice: self.scopes.iter().rev().find_map(|scope| scope.choice),
                    ..Definition::default()
                };
                self.current = Current::Symbol(rest.to_owned(), definition);
            }
            "menu" | "choice" | "if" => {
                self.finish();
                let mut scope = Scope::default();
                if keyword == "if" {
                    scope.depends.push(Arc::new(Expression::parse(rest)));
                } else if keyword == "choice" {
                    scope.choice = Some(self.kconfig.choices.len());
                    self.kconfig.choices.push(Choice::default());
                }
                self.scopes.push(scope);
                self.current = Current::Scope;
            }
            "endmenu" | "endchoice" | "endif" => {
                self.finish();
                self.scopes.pop();
            }
            "comment" => self.finish(),
            "source" | "osource" | "rsource" | "orsource" => {
                self.finish();
                if let Some(name) = self.expand(quoted(rest).0) {
                    let folder =
                        path.parent().filter(|_| keyword.contains("rs")).unwrap_or(Utf8Path::new(""));
                    self.file(&folder.join(name));
                }
            }
            _ => self.attribute(keyword, rest),
        }
    }

    fn attribute(&mut self, keyword: &str, rest: &str) {
        let (what, when) = split_if(rest);
        let condition = || when.map_or(Expression::Constant("y".into()), Expression::parse);
        match (keyword, &mut self.current) {
            (_, Current::Nothing) => {}
            ("depends", current) => {
                let (Some(what), when) = (what.strip_prefix("on").map(str::trim), when) else { return };
                let mut needed = Expression::parse(what);
                if let Some(when) = when {
                    needed =
                        Expression::Any(vec![needed, Expression::Not(Box::new(Expression::parse(when)))]);
                }
                match current {
                    Current::Symbol(_, definition) => definition.depends.push(Arc::new(needed)),
                    _ => {
                        if let Some(scope) = self.scopes.last_mut() {
                            scope.depends.push(Arc::new(needed));
                        }
                    }
                }
            }
            ("visible", Current::Scope) => {
                let needed = Arc::new(Expression::parse(rest.strip_prefix("if").unwrap_or(rest)));
                if let Some(scope) = self.scopes.last_mut() {
                    scope.visible.push(needed);
                }
            }
            ("prompt" | "bool" | "tristate", Current::Scope) if !what.is_empty() => {
                let needed = Arc::new(condition());
                if let Some(scope) = self.scopes.last_mut() {
                    scope.visible.push(needed);
                    if let Some(choice) = scope.choice.and_then(|index| self.kconfig.choices.get_mut(index)) {
                        choice.prompt = quoted(what).0.to_owned();
                    }
                }
            }
            ("bool" | "tristate" | "string" | "int" | "hex" | "prompt", Current::Symbol(_, definition)) => {
                if keyword != "prompt" {
                    definition.kind = keyword.to_owned();
                }
                if !what.is_empty() {
                    definition.prompt = Some(condition());
                }
            }
            ("def_bool" | "def_tristate" | "default", Current::Symbol(_, definition)) => {
                if let Some(kind) = keyword.strip_prefix("def_") {
                    definition.kind = kind.to_owned();
                }
                definition.defaults.push((Expression::parse(what), condition()));
            }
            ("select", Current::Symbol(name, _)) => {
                let selectors = self.kconfig.selectors.entry(what.to_owned()).or_default();
                selectors.push((name.clone(), condition()));
            }
            _ => {}
        }
    }

    /// Files the block that just ended.
    fn finish(&mut self) {
        if let Current::Symbol(name, definition) = std::mem::replace(&mut self.current, Current::Nothing) {
            if let Some(choice) = definition.choice.and_then(|index| self.kconfig.choices.get_mut(index)) {
                choice.members.push(name.clone());
            }
            self.kconfig.definitions.entry(name).or_default().push(definition);
        }
    }

    /// A path with the architecture filled in; `None` when it has other variables.
    fn expand(&self, path: &str) -> Option<String> {
        let path = path.replace("$(SRCARCH)", &self.kconfig.arch).replace("$SRCARCH", &self.kconfig.arch);
        (!path.is_empty() && !path.contains('$')).then_some(path)
    }
}

/// The text in quotes at the start and what follows it; a bare word counts as quoted.
fn quoted(text: &str) -> (&str, &str) {
    let Some(quote) = text.chars().next().filter(|c| matches!(c, '"' | '\'')) else {
        return text.split_once([' ', '\t']).unwrap_or((text, ""));
    };
    text[1..].split_once(quote).unwrap_or((&text[1..], ""))
}

/// Splits `what if when` at an `if` outside of quotes and macros, and drops a comment.
fn split_if(text: &str) -> (&str, Option<&str>) {
    let mut at = 0;
    let mut quote = None;
    let mut found = None;
    let mut end = text.len();
    while let Some(c) = text[at..].chars().next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => quote = Some(c),
            (None, '$') if text[at..].starts_with("$(") => {
                at += macro_end(&text[at..]);
                continue;
            }
            (None, '#') => {
                end = at;
                break;
            }
            (None, 'i') if found.is_none() && is_if(text, at) => found = Some(at),
            _ => {}
        }
        at += c.len_utf8();
    }
    match found {
        Some(at) => (text[..at].trim(), Some(text[at + 2..end].trim())),
        None => (text[..end].trim(), None),
    }
}

fn is_if(text: &str, at: usize) -> bool {
    let blank = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ')' | '(' | '!');
    text[at..].strip_prefix("if").is_some_and(|rest| rest.starts_with(blank)) && text[..at].ends_with(blank)
}

fn indentation(line: &str) -> usize {
    let mut columns = 0;
    for c in line.chars() {
        match c {
            ' ' => columns += 1,
            '\t' => columns = (columns / 8 + 1) * 8,
            _ => break,
        }
    }
    columns
}
