//! Takes an expression of a template, gives what is known of its value.

use minijinja::machinery::ast::{BinOpKind, Call, CallArg, CallType, Expr, Macro, UnaryOpKind};

use super::{DEPTH, KIND_TESTS, Kind, Proof, Scope, path};

/// The text of a constant.
pub(super) fn text<'e>(expression: &'e Expr<'_>) -> Option<&'e str> {
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

    pub(super) fn variable(&self, name: &str, scope: &Scope) -> Option<Kind> {
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

    pub(super) fn kind(&mut self, expression: &Expr<'a>, scope: &Scope) -> Option<Kind> {
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

    pub(super) fn call(&mut self, call: &Call<'a>, scope: &Scope) -> Option<Kind> {
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
