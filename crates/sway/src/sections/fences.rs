//! Fenced code blocks, whose contents are not Markdown.

/// Tracks line by line whether a line is inside a code block.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fences {
    open: Option<Fence>,
}

#[derive(Clone, Copy, Debug)]
struct Fence {
    mark: char,
    length: usize,
    line: usize,
}

impl Fences {
    /// Whether a line is inside a code block, or starts or ends one.
    pub(super) fn hides(&mut self, number: usize, line: &str) -> bool {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let rest = line.trim_start_matches(' ');
        let mark = rest.chars().next().filter(|mark| ['`', '~'].contains(mark));
        let length = mark.map_or(0, |mark| rest.chars().take_while(|letter| *letter == mark).count());
        let info = rest.get(length..).unwrap_or_default();
        match (self.open, mark) {
            (Some(open), Some(mark)) => {
                let closes = indent < 4 && mark == open.mark && length >= open.length;
                if closes && info.trim().is_empty() {
                    self.open = None;
                }
                true
            }
            (Some(_), None) => true,
            // A backtick after the fence makes it inline code.
            (None, Some(mark)) if indent < 4 && length >= 3 && !(mark == '`' && info.contains('`')) => {
                self.open = Some(Fence { mark, length, line: number });
                true
            }
            _ => false,
        }
    }

    /// The first line of a block without an end.
    pub(super) fn open_since(&self) -> Option<usize> {
        self.open.map(|fence| fence.line)
    }
}
