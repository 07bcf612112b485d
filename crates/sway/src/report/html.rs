//! Reports as a self-contained HTML page, without network access or scripts.
//!
//! The verdict comes first: a headline, three answers, and the evidence for
//! each. A forest plot shows all probes against their limits; what failed
//! follows item by item, then other charts, each with its numbers as a table,
//! and the texts that the two models generate. A page is always smaller than
//! [`MOST_BYTES`]: longer contents are cut, and the page says so.

mod banner;
mod chart;
mod contents;
mod drawing;
mod forest;
mod item_chart;
mod item_drawing;
mod scale;
mod text_diff;
mod trade_off;

#[cfg(test)]
mod tests;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, context};

use self::contents::{Contents, Limits};
use super::Report;

/// The largest page.
pub const MOST_BYTES: usize = 1_000_000;

const PAGE: &str = include_str!("html/page.html");
const COMPARISON: &str = include_str!("html/comparison.html");
const STYLE: &str = include_str!("html/style.css");

impl Report {
    /// The report as one HTML page.
    pub fn to_html(&self) -> String {
        let mut page = String::new();
        for limits in Limits::ALL {
            page = self.page(limits);
            if page.len() < MOST_BYTES {
                break;
            }
        }
        page
    }

    fn page(&self, limits: Limits) -> String {
        const OURS: &str = "the template is built in, and a test renders it";
        let environment = environment();
        let template = environment.get_template("page.html").expect(OURS);
        let contents = Contents::of(self, limits);
        template.render(context! { page => Serde(contents), style => STYLE }).expect(OURS)
    }
}

/// The templates.
fn environment() -> Environment<'static> {
    const OURS: &str = "the template is built in, and a test renders it";
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().expect(OURS);
    environment.set_syntax(syntax);
    for (name, template) in [("page.html", PAGE), ("comparison.html", COMPARISON)] {
        environment.add_template(name, template).expect(OURS);
    }
    environment
}
