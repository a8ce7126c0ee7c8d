//! Takes a chat template, says whether it copies the texts of messages as they are and looks into none of them.
//!
//! If it does, what it writes around the texts depends on the roles, the parts and their order alone, so it can be asked
//! once for all conversations of one shape (see `outline`). The proof is by kinds: every expression is plain (the same
//! for every text), a text, or a list or map that leads to texts. Texts may be written, joined, kept in variables and
//! handed to macros; anything else that is done to them ends the proof, and so does what is not known here. No text is
//! empty, so whether something is empty is known without its text.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::machinery::ast::{
    BinOpKind, Call, CallArg, CallType, Expr, ForLoop, Macro, Stmt, UnaryOpKind,
};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

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

/// The text of a constant.
fn text<'e>(expression: &'e Expr<'_>) -> Option<&'e str> {
    match expression {
        Expr::Const(constant) => constant.value.as_str(),
        _ => None,
    }
}

/// Whether comparing a text with this constant asks only whether the text is there.
fn is_nothing(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(constant) => constant.value.is_none() || constant.value.as_str() == Some(""),
        _ => false,
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

/// Expressions; `None` ends the proof.
impl<'a, 't> Proof<'a, 't> {
    fn plain<'e>(&mut self, all: impl IntoIterator<Item = &'e Expr<'a>>, scope: &Scope) -> Option<Kind>
    where
        'a: 'e,
    {
        for expression in all {
            self.kind(expression, scope)?.is_plain()?;
        }
        Some(Kind::Plain)
    }

    fn variable(&self, name: &str, scope: &Scope) -> Option<Kind> {
        if let Some(kind) = scope.variables.get(name) {
            return Some(*kind);
        }
        let hidden = matches!(name, "self" | "super" | "caller") || self.macros.contains_key(name);
        if hidden || (scope.in_macro && self.tainted.contains(name)) {
            return None;
        }
        Some(if name == "messages" { Kind::Messages } else { Kind::Plain })
    }

    /// A field with a fixed name. Messages and parts have no other fields in the conversations that are outlined.
    fn field(&self, of: Kind, name: &str, scope: &Scope) -> Option<Kind> {
        match (of, name) {
            (Kind::Message, "content") => Some(Kind::Content),
            (Kind::Part, "text") => Some(Kind::Text),
            (Kind::Loop, "previtem" | "nextitem") => scope.item,
            (Kind::Loop, "index" | "index0" | "revindex" | "revindex0" | "first" | "last" | "length") => {
                Some(Kind::Plain)
            }
            (Kind::Plain | Kind::Message | Kind::Part, _) => Some(Kind::Plain),
            _ => None,
        }
    }

    fn kind(&mut self, expression: &Expr<'a>, scope: &Scope) -> Option<Kind> {
        let kind = self.kind_of(expression, scope)?;
        // A path that leads to no content is not narrowed.
        let narrowed = path(expression).and_then(|path| scope.narrowed.get(&path).copied());
        Some(if kind == Kind::Content { narrowed.unwrap_or(kind) } else { kind })
    }

    fn kind_of(&mut self, expression: &Expr<'a>, scope: &Scope) -> Option<Kind> {
        match expression {
            Expr::Var(variable) => self.variable(variable.id, scope),
            Expr::Const(_) => Some(Kind::Plain),
            Expr::GetAttr(get) => {
                let of = self.kind(&get.expr, scope)?;
                self.field(of, get.name, scope)
            }
            Expr::GetItem(get) => {
                let of = self.kind(&get.expr, scope)?;
                if let Some(name) = text(&get.subscript_expr) {
                    return self.field(of, name, scope);
                }
                self.plain([&get.subscript_expr], scope)?;
                match of {
                    Kind::Messages => Some(Kind::Message),
                    Kind::Parts => Some(Kind::Part),
                    of => of.is_plain(),
                }
            }
            Expr::Slice(slice) => {
                self.plain([&slice.start, &slice.stop, &slice.step].into_iter().flatten(), scope)?;
                let of = self.kind(&slice.expr, scope)?;
                matches!(of, Kind::Plain | Kind::Messages | Kind::Parts).then_some(of)
            }
            Expr::UnaryOp(unary) => {
                let kind = self.kind(&unary.expr, scope)?;
                match unary.op {
                    UnaryOpKind::Not => Some(Kind::Plain),
                    UnaryOpKind::Neg => kind.is_plain(),
                }
            }
            Expr::BinOp(binary) => self.binary(binary.op, &binary.left, &binary.right, scope),
            Expr::Compare(compare) => {
                let others = compare.ops.iter().map(|operation| &operation.expr);
                self.plain(std::iter::once(&compare.expr).chain(others), scope)
            }
            Expr::IfExpr(either) => {
                self.kind(&either.test_expr, scope)?;
                let (yes, no) = self.narrow(&either.test_expr, scope)?;
                let one = self.kind(&either.true_expr, &yes)?;
                let other =
                    either.false_expr.as_ref().map_or(Some(Kind::Plain), |other| self.kind(other, &no));
                one.or(other?)
            }
            Expr::Filter(filter) => {
                let of = self.kind(filter.expr.as_ref()?, scope)?;
                self.arguments(&filter.args, scope)?;
                let counted = matches!(filter.name, "length" | "count") && filter.args.is_empty();
                match of {
                    Kind::Messages | Kind::Parts if counted => Some(Kind::Plain),
                    of => of.is_plain(),
                }
            }
            Expr::Test(test) => {
                self.arguments(&test.args, scope)?;
                let of = self.kind(&test.expr, scope)?;
                if KIND_TESTS.contains(&test.name) { Some(Kind::Plain) } else { of.is_plain() }
            }
            Expr::Call(call) => self.call(call, scope),
            Expr::List(list) => self.plain(&list.items, scope),
            Expr::Tuple(tuple) => self.plain(&tuple.items, scope),
            Expr::Map(map) => self.plain(map.keys.iter().chain(&map.values), scope),
        }
    }

    fn binary(
        &mut self,
        operation: BinOpKind,
        left: &Expr<'a>,
        right: &Expr<'a>,
        scope: &Scope,
    ) -> Option<Kind> {
        let (one, other) = (self.kind(left, scope)?, self.kind(right, scope)?);
        match operation {
            BinOpKind::ScAnd | BinOpKind::ScOr => one.or(other),
            BinOpKind::Eq | BinOpKind::Ne if is_nothing(left) || is_nothing(right) => Some(Kind::Plain),
            // Whether a field is there.
            BinOpKind::In if matches!(other, Kind::Part | Kind::Message) => one.is_plain(),
            BinOpKind::Add | BinOpKind::Concat => match (one.is_written()?, other.is_written()?) {
                (Kind::Plain, Kind::Plain) => Some(Kind::Plain),
                _ => Some(Kind::Text),
            },
            _ => one.is_plain().and(other.is_plain()),
        }
    }

    fn arguments(&mut self, arguments: &[CallArg<'a>], scope: &Scope) -> Option<()> {
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.kind(value, scope)?.is_plain()?,
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return None,
            };
        }
        Some(())
    }

    fn call(&mut self, call: &Call<'a>, scope: &Scope) -> Option<Kind> {
        match call.identify_call() {
            CallType::Function(name) => match self.macros.get(name).copied() {
                Some(written) if !scope.variables.contains_key(name) => {
                    self.inline(written, &call.args, scope)
                }
                _ => {
                    self.variable(name, scope)?.is_plain()?;
                    self.arguments(&call.args, scope)?;
                    Some(Kind::Plain)
                }
            },
            CallType::Method(receiver, _) => {
                self.kind(receiver, scope)?.is_plain()?;
                self.arguments(&call.args, scope)?;
                Some(Kind::Plain)
            }
            CallType::Object(_) | CallType::Block(_) => None,
        }
    }

    /// A macro with these arguments.
    fn inline(&mut self, written: &'t Macro<'a>, arguments: &[CallArg<'a>], scope: &Scope) -> Option<Kind> {
        if self.depth == DEPTH {
            return None;
        }
        let mut inner = Scope { in_macro: true, ..Scope::default() };
        for parameter in &written.args {
            self.assign(parameter, Kind::Plain, &mut inner)?;
        }
        let mut parameters = written.args.iter();
        for argument in arguments {
            match argument {
                CallArg::Pos(value) => {
                    let kind = self.kind(value, scope)?;
                    self.assign(parameters.next()?, kind, &mut inner)?;
                }
                CallArg::Kwarg(name, value) => {
                    let kind = self.kind(value, scope)?;
                    if kind != Kind::Plain {
                        self.tainted.insert((*name).to_owned());
                    }
                    inner.variables.contains_key(*name).then_some(())?;
                    inner.bind(name, kind);
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return None,
            }
        }
        self.depth += 1;
        let kind = self.capture(&written.body, &mut inner);
        self.depth -= 1;
        kind
    }
}
