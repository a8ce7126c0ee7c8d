//! Takes a chat template, says whether it copies the texts of messages as they are and looks into none of them.
//!
//! If it does, what it writes around the texts depends on the roles, the parts and their order alone, so it can be asked
//! once for all conversations of one shape (see `outline`). The proof is by kinds: every expression is plain (the same
//! for every text), a text, or a list or map that leads to texts. Texts may be written, joined, kept in variables and
//! handed to macros; anything else that is done to them ends the proof, and so does what is not known here. No text is
//! empty, so whether something is empty is known without its text.

mod expressions;

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::{Expr, ForLoop, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

use expressions::text;

/// The filter that stands for `{% generation %}`.
pub(super) const GENERATION: &str = "feedmill_generation";

/// Macros within macros, more than any template has.
const DEPTH: usize = 8;

/// Passes over the template and over the body of a loop: names that hold texts are known after the first.
const PASSES: usize = 3;

/// Tests that ask what a value is, not what it says.
const KIND_TESTS: [&str; 9] =
    ["string", "defined", "undefined", "none", "mapping", "iterable", "sequence", "number", "boolean"];

/// What is known of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Does not depend on any text.
    Plain,
    /// Made of texts and plain text, all as they are.
    Text,
    /// The content of a message: one text, or a list of parts. A list shows in an outline if it is written.
    Content,
    /// A list of parts.
    Parts,
    Part,
    Message,
    Messages,
    /// The variable `loop`.
    Loop,
}

impl Kind {
    /// What is known of a value that is one of two.
    fn or(self, other: Self) -> Option<Self> {
        match (self, other) {
            (one, other) if one == other => Some(one),
            // Whatever may be done to the other kind gives plain values of a plain one.
            (Kind::Plain, kind) | (kind, Kind::Plain) => Some(kind),
            (Kind::Text | Kind::Parts | Kind::Content, Kind::Text | Kind::Parts | Kind::Content) => {
                Some(Kind::Content)
            }
            _ => None,
        }
    }

    fn is_plain(self) -> Option<Self> {
        (self == Kind::Plain).then_some(self)
    }

    /// May be written and joined.
    fn is_written(self) -> Option<Self> {
        matches!(self, Kind::Plain | Kind::Text | Kind::Content).then_some(self)
    }
}

/// Variables where a statement stands.
#[derive(Clone, Default)]
struct Scope {
    /// What is not here is plain.
    variables: BTreeMap<String, Kind>,
    /// Paths such as `message.content` of which a condition tells more.
    narrowed: BTreeMap<String, Kind>,
    /// What the innermost loop walks over.
    item: Option<Kind>,
    in_macro: bool,
}

impl Scope {
    fn bind(&mut self, name: &str, kind: Kind) {
        self.variables.insert(name.to_owned(), kind);
        self.narrowed.retain(|path, _| path.split('.').next() != Some(name));
    }

    /// What holds after one of two branches.
    fn or(&mut self, one: Self, other: Self) -> Option<()> {
        self.narrowed.retain(|path, kind| {
            [&one, &other].into_iter().all(|scope| scope.narrowed.get(path) == Some(kind))
        });
        self.variables = one.variables;
        self.join(other.variables)
    }

    fn join(&mut self, other: BTreeMap<String, Kind>) -> Option<()> {
        for (name, kind) in other {
            let known = self.variables.get(&name).copied().unwrap_or(Kind::Plain);
            self.variables.insert(name, known.or(kind)?);
        }
        Some(())
    }
}

#[derive(Default)]
struct Proof<'a, 't> {
    macros: BTreeMap<&'a str, &'t Macro<'a>>,
    /// Names that ever held anything but plain values: macros see variables of where they were written.
    tainted: BTreeSet<String>,
    depth: usize,
    /// Whether a text was written since the innermost capture began.
    wrote_text: bool,
}

/// Whether a template that compiles is known to copy texts and to look into none.
pub(super) fn copies_texts(source: &str, syntax: SyntaxConfig) -> bool {
    let Ok(template) = parse(source, "chat", syntax) else { return false };
    let mut tainted = BTreeSet::new();
    for _ in 0..PASSES {
        let mut proof = Proof { tainted: tainted.clone(), ..Proof::default() };
        if proof.statement(&template, &mut Scope::default()).is_none() {
            return false;
        }
        if proof.tainted == tainted {
            return true;
        }
        tainted = proof.tainted;
    }
    false
}

/// A variable or a field of one, as a path.
fn path(expression: &Expr<'_>) -> Option<String> {
    let field = |base: &Expr<'_>, name: &str| {
        let base = path(base)?;
        (!name.contains('.')).then(|| format!("{base}.{name}"))
    };
    match expression {
        Expr::Var(variable) => Some(variable.id.to_owned()),
        Expr::GetAttr(get) => field(&get.expr, get.name),
        Expr::GetItem(get) => field(&get.expr, text(&get.subscript_expr)?),
        _ => None,
    }
}

/// Statements; `None` ends the proof.
impl<'a, 't> Proof<'a, 't> {
    fn statements(&mut self, statements: &'t [Stmt<'a>], scope: &mut Scope) -> Option<()> {
        statements.iter().try_for_each(|statement| self.statement(statement, scope))
    }

    fn statement(&mut self, statement: &'t Stmt<'a>, scope: &mut Scope) -> Option<()> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children, scope),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => Some(()),
            Stmt::EmitExpr(emit) => {
                let kind = self.kind(&emit.expr, scope)?.is_written()?;
                self.wrote_text |= kind != Kind::Plain;
                Some(())
            }
            Stmt::ForLoop(each) => self.each(each, scope),
            Stmt::IfCond(condition) => {
                self.kind(&condition.expr, scope)?;
                let (mut yes, mut no) = self.narrow(&condition.expr, scope)?;
                self.statements(&condition.true_body, &mut yes)?;
                self.statements(&condition.false_body, &mut no)?;
                scope.or(yes, no)
            }
            Stmt::WithBlock(with) => {
                let mut inner = scope.clone();
                for (target, value) in &with.assignments {
                    let kind = self.kind(value, &inner)?;
                    self.assign(target, kind, &mut inner)?;
                }
                self.statements(&with.body, &mut inner)
            }
            Stmt::Set(set) => {
                let kind = self.kind(&set.expr, scope)?;
                self.assign(&set.target, kind, scope)
            }
            Stmt::SetBlock(set) => {
                let kind = self.capture(&set.body, &mut scope.clone())?;
                if set.filter.is_some() {
                    kind.is_plain()?;
                }
                self.assign(&set.target, kind, scope)
            }
            Stmt::FilterBlock(block) => match &block.filter {
                Expr::Filter(filter) if filter.name == GENERATION && filter.expr.is_none() => {
                    self.statements(&block.body, scope)
                }
                _ => self.capture(&block.body, scope)?.is_plain().map(|_| ()),
            },
            Stmt::Macro(written) => {
                for default in &written.defaults {
                    self.kind(default, scope)?.is_plain()?;
                }
                let known = self.macros.insert(written.name, written);
                known.is_none_or(|known| std::ptr::eq::<Macro<'a>>(known, &**written)).then_some(())
            }
            Stmt::Do(call) => self.call(&call.call, scope)?.is_plain().map(|_| ()),
            // Other templates, automatic escapes, blocks that are handed to macros.
            _ => None,
        }
    }

    fn assign(&mut self, target: &Expr<'a>, kind: Kind, scope: &mut Scope) -> Option<()> {
        match target {
            Expr::Var(variable) => {
                if kind != Kind::Plain {
                    self.tainted.insert(variable.id.to_owned());
                }
                scope.bind(variable.id, kind);
                Some(())
            }
            // Fields of namespaces.
            Expr::GetAttr(get) if kind == Kind::Plain => {
                matches!(get.expr, Expr::Var(_)).then_some(())?;
                path(&get.expr).and_then(|name| self.variable(&name, scope))?.is_plain().map(|_| ())
            }
            Expr::Tuple(tuple) if kind == Kind::Plain => {
                tuple.items.iter().try_for_each(|target| self.assign(target, kind, scope))
            }
            Expr::List(list) if kind == Kind::Plain => {
                list.items.iter().try_for_each(|target| self.assign(target, kind, scope))
            }
            _ => None,
        }
    }

    fn each(&mut self, each: &'t ForLoop<'a>, scope: &mut Scope) -> Option<()> {
        let item = match self.kind(&each.iter, scope)? {
            Kind::Messages => Kind::Message,
            Kind::Parts => Kind::Part,
            Kind::Plain => Kind::Plain,
            _ => return None,
        };
        if each.recursive {
            return None;
        }
        self.tainted.insert("loop".to_owned());
        // What one pass through the body sets, the next may see.
        for _ in 0..PASSES {
            let before = scope.variables.clone();
            let mut inner = scope.clone();
            let outside = inner.variables.clone();
            inner.item = Some(item);
            inner.bind("loop", Kind::Loop);
            self.assign(&each.target, item, &mut inner)?;
            let bound: Vec<String> = match &each.target {
                Expr::Var(variable) => vec![variable.id.to_owned()],
                _ => Vec::new(),
            };
            if let Some(filter) = &each.filter_expr {
                self.kind(filter, &inner)?;
            }
            self.statements(&each.body, &mut inner)?;
            inner.variables.retain(|name, _| name != "loop" && !bound.contains(name));
            scope.narrowed.retain(|path, _| {
                let root = path.split('.').next().unwrap_or_default();
                inner.variables.get(root) == outside.get(root) || bound.iter().any(|name| name == root)
            });
            scope.join(inner.variables)?;
            if scope.variables == before {
                return self.statements(&each.else_body, scope);
            }
        }
        None
    }

    /// What is captured instead of written.
    fn capture(&mut self, body: &'t [Stmt<'a>], scope: &mut Scope) -> Option<Kind> {
        let outside = std::mem::take(&mut self.wrote_text);
        self.statements(body, scope)?;
        let wrote_text = std::mem::replace(&mut self.wrote_text, outside);
        Some(if wrote_text { Kind::Text } else { Kind::Plain })
    }

    /// What holds where a condition is met, and where it is not.
    fn narrow(&mut self, condition: &Expr<'a>, scope: &Scope) -> Option<(Scope, Scope)> {
        let (mut yes, mut no) = (scope.clone(), scope.clone());
        match condition {
            Expr::Test(test) if test.name == "string" => {
                if let Some(path) = path(&test.expr)
                    && self.kind(&test.expr, scope)? == Kind::Content
                {
                    yes.narrowed.insert(path.clone(), Kind::Text);
                    no.narrowed.insert(path, Kind::Parts);
                }
            }
            Expr::UnaryOp(not) if matches!(not.op, UnaryOpKind::Not) => {
                (no, yes) = self.narrow(&not.expr, scope)?;
            }
            _ => {}
        }
        Some((yes, no))
    }
}
