//! Rewriting of parsed templates.
//!
//! Operators, subscripts, literals, loops and assignments get filters that
//! charge what they are about to do (see `guard`). The names of these filters
//! contain a hyphen, so that no template can define or shadow them. Positions
//! stay, so that errors name the right line.

use minijinja::Value;
use minijinja::machinery::Span;
use minijinja::machinery::ast::{
    AutoEscape, BinOp, BinOpKind, Break, Call, CallArg, CallBlock, Compare, CompareOp, Const, Continue, Do,
    EmitExpr, EmitRaw, Expr, Filter, FilterBlock, ForLoop, GetAttr, GetItem, IfCond, IfExpr, List, Macro,
    Map, Set, SetBlock, Slice, Spanned, Stmt, Template, Test, Tuple, UnaryOp, UnaryOpKind, Var, WithBlock,
};

pub(super) const STEP: &str = "weightloom-step";
pub(super) const CONDITION: &str = "weightloom-condition";
pub(super) const OPERAND: &str = "weightloom-operand";
pub(super) const TEXT: &str = "weightloom-text";
pub(super) const PRODUCT: &str = "weightloom-product";
pub(super) const LITERAL: &str = "weightloom-literal";
pub(super) const RESULT: &str = "weightloom-result";
pub(super) const SUBJECT: &str = "weightloom-subject";
pub(super) const STORE: &str = "weightloom-store";

/// Work per expression or statement of a body.
const NODE_COST: u64 = 16;

/// Rewrites a template.
pub(super) fn rewrite<'a>(template: &Stmt<'a>) -> Stmt<'a> {
    Rewriter::default().stmt(template)
}

/// Counts what it has rewritten.
#[derive(Default)]
struct Rewriter {
    nodes: u64,
    raw_bytes: u64,
}

impl Rewriter {
    fn body<'a>(&mut self, stmts: &[Stmt<'a>]) -> Vec<Stmt<'a>> {
        stmts.iter().map(|stmt| self.stmt(stmt)).collect()
    }

    /// A body that can run many times: its first statement charges for it.
    fn repeated<'a>(&mut self, stmts: &[Stmt<'a>], span: Span) -> Vec<Stmt<'a>> {
        let before = (self.nodes, self.raw_bytes);
        let body = self.body(stmts);
        let work = number((self.nodes - before.0) * NODE_COST, span);
        let raw_bytes = number(self.raw_bytes - before.1, span);
        let step = apply(STEP, work, vec![CallArg::Pos(raw_bytes)], span);
        let target = Expr::Var(Spanned::new(Var { id: STEP }, span));
        let step = Stmt::Set(Spanned::new(Set { target, expr: step }, span));
        std::iter::once(step).chain(body).collect()
    }

    fn stmt<'a>(&mut self, stmt: &Stmt<'a>) -> Stmt<'a> {
        self.nodes += 1;
        match stmt {
            Stmt::Template(s) => {
                Stmt::Template(Spanned::new(Template { children: self.body(&s.children) }, s.span()))
            }
            Stmt::EmitExpr(s) => {
                Stmt::EmitExpr(Spanned::new(EmitExpr { expr: self.expr(&s.expr) }, s.span()))
            }
            Stmt::EmitRaw(s) => {
                self.raw_bytes += s.raw.len() as u64;
                Stmt::EmitRaw(Spanned::new(EmitRaw { raw: s.raw }, s.span()))
            }
            Stmt::ForLoop(s) => {
                let iter = self.assigned(&s.target, &s.iter);
                let iter = apply(SUBJECT, iter, Vec::new(), s.iter.span());
                let filter_expr = s.filter_expr.as_ref().map(|condition| {
                    let span = condition.span();
                    apply(CONDITION, self.expr(condition), Vec::new(), span)
                });
                let node = ForLoop {
                    target: self.target(&s.target),
                    iter,
                    filter_expr,
                    recursive: s.recursive,
                    body: self.repeated(&s.body, s.span()),
                    else_body: self.body(&s.else_body),
                };
                Stmt::ForLoop(Spanned::new(node, s.span()))
            }
            Stmt::IfCond(s) => {
                let node = IfCond {
                    expr: self.expr(&s.expr),
                    true_body: self.body(&s.true_body),
                    false_body: self.body(&s.false_body),
                };
                Stmt::IfCond(Spanned::new(node, s.span()))
            }
            Stmt::WithBlock(s) => {
                let assignments = s
                    .assignments
                    .iter()
                    .map(|(target, expr)| (self.target(target), self.assigned(target, expr)))
                    .collect();
                Stmt::WithBlock(Spanned::new(WithBlock { assignments, body: self.body(&s.body) }, s.span()))
            }
            Stmt::Set(s) => {
                let node = Set { target: self.target(&s.target), expr: self.assigned(&s.target, &s.expr) };
                Stmt::Set(Spanned::new(node, s.span()))
            }
            Stmt::SetBlock(s) => {
                let node = SetBlock {
                    target: self.target(&s.target),
                    filter: s.filter.as_ref().map(|filter| self.expr(filter)),
                    body: self.body(&s.body),
                };
                Stmt::SetBlock(Spanned::new(node, s.span()))
            }
            Stmt::AutoEscape(s) => {
                let node = AutoEscape { enabled: self.expr(&s.enabled), body: self.body(&s.body) };
                Stmt::AutoEscape(Spanned::new(node, s.span()))
            }
            Stmt::FilterBlock(s) => {
                let node = FilterBlock { filter: self.expr(&s.filter), body: self.body(&s.body) };
                Stmt::FilterBlock(Spanned::new(node, s.span()))
            }
            Stmt::Macro(s) => Stmt::Macro(self.macro_decl(s)),
            Stmt::CallBlock(s) => {
                let node = CallBlock { call: self.call(&s.call), macro_decl: self.macro_decl(&s.macro_decl) };
                Stmt::CallBlock(Spanned::new(node, s.span()))
            }
            Stmt::Continue(s) => Stmt::Continue(Spanned::new(Continue, s.span())),
            Stmt::Break(s) => Stmt::Break(Spanned::new(Break, s.span())),
            Stmt::Do(s) => Stmt::Do(Spanned::new(Do { call: self.call(&s.call) }, s.span())),
        }
    }

    fn macro_decl<'a>(&mut self, s: &Spanned<Macro<'a>>) -> Spanned<Macro<'a>> {
        let node = Macro {
            name: s.name,
            args: s.args.iter().map(|arg| self.target(arg)).collect(),
            defaults: s.defaults.iter().map(|default| self.expr(default)).collect(),
            body: self.repeated(&s.body, s.span()),
        };
        Spanned::new(node, s.span())
    }

    /// The target of an assignment, which is not computed.
    fn target<'a>(&mut self, target: &Expr<'a>) -> Expr<'a> {
        match target {
            Expr::List(s) => {
                let items = s.items.iter().map(|item| self.target(item)).collect();
                Expr::List(Spanned::new(List { items }, s.span()))
            }
            other => self.expr(other),
        }
    }

    /// What is assigned to a target. Only plain data goes into namespaces.
    fn assigned<'a>(&mut self, target: &Expr<'a>, expr: &Expr<'a>) -> Expr<'a> {
        let value = self.expr(expr);
        if has_attribute(target) { apply(STORE, value, Vec::new(), expr.span()) } else { value }
    }

    fn operand<'a>(&mut self, expr: &Expr<'a>, filter: &'static str) -> Expr<'a> {
        let value = self.expr(expr);
        match expr {
            Expr::Const(_) => value,
            _ => apply(filter, value, Vec::new(), expr.span()),
        }
    }

    fn option<'a>(&mut self, expr: Option<&Expr<'a>>) -> Option<Expr<'a>> {
        expr.map(|expr| self.expr(expr))
    }

    fn exprs<'a>(&mut self, exprs: &[Expr<'a>]) -> Vec<Expr<'a>> {
        exprs.iter().map(|expr| self.expr(expr)).collect()
    }

    fn args<'a>(&mut self, args: &[CallArg<'a>], filter: Option<&'static str>) -> Vec<CallArg<'a>> {
        let mut value = |expr: &Expr<'a>| match filter {
            Some(filter) => self.operand(expr, filter),
            None => self.expr(expr),
        };
        args.iter()
            .map(|arg| match arg {
                CallArg::Pos(expr) => CallArg::Pos(value(expr)),
                CallArg::Kwarg(name, expr) => CallArg::Kwarg(name, value(expr)),
                CallArg::PosSplat(expr) => {
                    let span = expr.span();
                    CallArg::PosSplat(apply(OPERAND, value(expr), Vec::new(), span))
                }
                CallArg::KwargSplat(expr) => {
                    let span = expr.span();
                    CallArg::KwargSplat(apply(OPERAND, value(expr), Vec::new(), span))
                }
            })
            .collect()
    }

    fn call<'a>(&mut self, s: &Spanned<Call<'a>>) -> Spanned<Call<'a>> {
        // `loop.changed` compares its arguments; other functions and methods
        // charge by themselves, and macros do not look at theirs.
        let compares = matches!(&s.expr, Expr::GetAttr(attribute) if attribute.name == "changed");
        let args = self.args(&s.args, compares.then_some(OPERAND));
        Spanned::new(Call { expr: self.expr(&s.expr), args }, s.span())
    }

    fn expr<'a>(&mut self, expr: &Expr<'a>) -> Expr<'a> {
        self.nodes += 1;
        match expr {
            Expr::Var(s) => Expr::Var(Spanned::new(Var { id: s.id }, s.span())),
            Expr::Const(s) => Expr::Const(Spanned::new(Const { value: s.value.clone() }, s.span())),
            Expr::Slice(s) => {
                let node = Slice {
                    expr: self.operand(&s.expr, SUBJECT),
                    start: self.option(s.start.as_ref()),
                    stop: self.option(s.stop.as_ref()),
                    step: self.option(s.step.as_ref()),
                };
                apply(RESULT, Expr::Slice(Spanned::new(node, s.span())), Vec::new(), s.span())
            }
            Expr::UnaryOp(s) => {
                let not = matches!(s.op, UnaryOpKind::Not);
                let op = if not { UnaryOpKind::Not } else { UnaryOpKind::Neg };
                Expr::UnaryOp(Spanned::new(UnaryOp { op, expr: self.expr(&s.expr) }, s.span()))
            }
            Expr::BinOp(s) => self.bin_op(s),
            Expr::Compare(s) => {
                let ops = s
                    .ops
                    .iter()
                    .map(|op| CompareOp { op: op.op, expr: self.operand(&op.expr, OPERAND) })
                    .collect();
                let node = Compare { expr: self.operand(&s.expr, OPERAND), ops };
                Expr::Compare(Spanned::new(node, s.span()))
            }
            Expr::IfExpr(s) => {
                let node = IfExpr {
                    test_expr: self.expr(&s.test_expr),
                    true_expr: self.expr(&s.true_expr),
                    false_expr: self.option(s.false_expr.as_ref()),
                };
                Expr::IfExpr(Spanned::new(node, s.span()))
            }
            Expr::Filter(s) => {
                let node = Filter {
                    name: s.name,
                    expr: self.option(s.expr.as_ref()),
                    args: self.args(&s.args, None),
                };
                Expr::Filter(Spanned::new(node, s.span()))
            }
            Expr::Test(s) => {
                let node = Test { name: s.name, expr: self.expr(&s.expr), args: self.args(&s.args, None) };
                Expr::Test(Spanned::new(node, s.span()))
            }
            Expr::GetAttr(s) => {
                Expr::GetAttr(Spanned::new(GetAttr { expr: self.expr(&s.expr), name: s.name }, s.span()))
            }
            Expr::GetItem(s) => {
                let node = GetItem {
                    expr: self.operand(&s.expr, SUBJECT),
                    subscript_expr: self.operand(&s.subscript_expr, OPERAND),
                };
                Expr::GetItem(Spanned::new(node, s.span()))
            }
            Expr::Call(s) => Expr::Call(self.call(s)),
            Expr::List(s) => {
                let node = Expr::List(Spanned::new(List { items: self.exprs(&s.items) }, s.span()));
                literal(node, &s.items, s.span())
            }
            Expr::Tuple(s) => {
                let node = Expr::Tuple(Spanned::new(Tuple { items: self.exprs(&s.items) }, s.span()));
                literal(node, &s.items, s.span())
            }
            Expr::Map(s) => {
                let keys = s.keys.iter().map(|key| self.operand(key, OPERAND)).collect();
                let values = self.exprs(&s.values);
                let node = Expr::Map(Spanned::new(Map { keys, values }, s.span()));
                literal(node, &s.values, s.span())
            }
        }
    }

    fn bin_op<'a>(&mut self, s: &Spanned<BinOp<'a>>) -> Expr<'a> {
        let span = s.span();
        if let BinOpKind::Mul = s.op {
            let right = CallArg::Pos(self.expr(&s.right));
            return apply(PRODUCT, self.expr(&s.left), vec![right], span);
        }
        let filter = match s.op {
            BinOpKind::Add | BinOpKind::Concat => TEXT,
            BinOpKind::ScAnd | BinOpKind::ScOr => {
                let node = BinOp { op: s.op, left: self.expr(&s.left), right: self.expr(&s.right) };
                return Expr::BinOp(Spanned::new(node, span));
            }
            _ => OPERAND,
        };
        let node =
            BinOp { op: s.op, left: self.operand(&s.left, filter), right: self.operand(&s.right, filter) };
        let node = Expr::BinOp(Spanned::new(node, span));
        if filter == TEXT { apply(RESULT, node, Vec::new(), span) } else { node }
    }
}

fn literal<'a>(node: Expr<'a>, items: &[Expr<'a>], span: Span) -> Expr<'a> {
    if items.iter().all(|item| matches!(item, Expr::Const(_))) {
        return node;
    }
    apply(LITERAL, node, Vec::new(), span)
}

fn apply<'a>(name: &'static str, expr: Expr<'a>, args: Vec<CallArg<'a>>, span: Span) -> Expr<'a> {
    Expr::Filter(Spanned::new(Filter { name, expr: Some(expr), args }, span))
}

fn number<'a>(number: u64, span: Span) -> Expr<'a> {
    Expr::Const(Spanned::new(Const { value: Value::from(number) }, span))
}

/// Whether a target sets an attribute.
fn has_attribute(target: &Expr<'_>) -> bool {
    match target {
        Expr::GetAttr(_) => true,
        Expr::List(list) => list.items.iter().any(has_attribute),
        _ => false,
    }
}
