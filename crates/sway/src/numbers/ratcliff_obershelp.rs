//! Ratcliff-Obershelp similarity (gestalt pattern matching) of two texts.
//!
//! Equal to `difflib.SequenceMatcher(None, first, second).ratio()` in Python,
//! including its `autojunk` rule: in a second text of 200 characters or more, a
//! character that makes up over 1 % of it cannot start a block.

use std::collections::HashMap;

/// Length of the second text from which frequent characters are popular.
const AUTOJUNK_LENGTH: usize = 200;

/// Twice the number of matching characters over the total number; zero if a
/// text is empty.
///
/// Not symmetric: only the second text has popular characters, and the first of
/// equally long blocks in the first text wins.
pub fn ratcliff_obershelp(first: &str, second: &str) -> f64 {
    let first: Vec<char> = first.chars().collect();
    let second: Vec<char> = second.chars().collect();
    if first.is_empty() || second.is_empty() {
        return 0.0;
    }
    let matched = Matcher::new(&first, &second).matched();
    2.0 * matched as f64 / (first.len() + second.len()) as f64
}

/// A range of each text.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: (usize, usize),
    second: (usize, usize),
}

/// A matching block.
#[derive(Clone, Copy, Debug)]
struct Block {
    first: usize,
    second: usize,
    length: usize,
}

struct Matcher<'a> {
    first: &'a [char],
    second: &'a [char],
    /// Class of each character of the first text: an index into `positions`.
    classes: Vec<usize>,
    /// Positions of each class in the second text; empty if popular.
    positions: Vec<Vec<usize>>,
    /// Length of the run that ends at each position of the second text, for
    /// the previous and the current position of the first.
    runs: [Vec<usize>; 2],
}

impl<'a> Matcher<'a> {
    fn new(first: &'a [char], second: &'a [char]) -> Self {
        let mut classes: HashMap<char, usize> = HashMap::new();
        // Class 0 holds characters that the second text lacks.
        let mut positions = vec![Vec::new()];
        for (position, character) in second.iter().enumerate() {
            let class = *classes.entry(*character).or_insert_with(|| {
                positions.push(Vec::new());
                positions.len() - 1
            });
            positions[class].push(position);
        }
        if second.len() >= AUTOJUNK_LENGTH {
            let most = second.len() / 100 + 1;
            for found in &mut positions {
                if found.len() > most {
                    found.clear();
                }
            }
        }
        let classes = first.iter().map(|character| classes.get(character).copied().unwrap_or(0)).collect();
        let runs = [vec![0; second.len() + 1], vec![0; second.len() + 1]];
        Self { first, second, classes, positions, runs }
    }

    fn matched(mut self) -> usize {
        let mut matched = 0;
        let mut open = vec![Window { first: (0, self.first.len()), second: (0, self.second.len()) }];
        while let Some(window) = open.pop() {
            let block = self.longest_match(window);
            if block.length == 0 {
                continue;
            }
            matched += block.length;
            let left =
                Window { first: (window.first.0, block.first), second: (window.second.0, block.second) };
            let right = Window {
                first: (block.first + block.length, window.first.1),
                second: (block.second + block.length, window.second.1),
            };
            for rest in [left, right] {
                if rest.first.0 < rest.first.1 && rest.second.0 < rest.second.1 {
                    open.push(rest);
                }
            }
        }
        matched
    }

    /// The longest matching block of a window: found without popular
    /// characters, then extended over any.
    fn longest_match(&mut self, window: Window) -> Block {
        let mut best = Block { first: window.first.0, second: window.second.0, length: 0 };
        let [last, current] = &mut self.runs;
        for at in window.first.0..window.first.1 {
            for &position in &self.positions[self.classes[at]] {
                if position < window.second.0 {
                    continue;
                }
                if position >= window.second.1 {
                    break;
                }
                // Slot p + 1 belongs to position p, so that position 0 has a predecessor.
                let length = last[position] + 1;
                current[position + 1] = length;
                if length > best.length {
                    best = Block { first: at + 1 - length, second: position + 1 - length, length };
                }
            }
            // Clear the row before last through its own positions.
            if at > window.first.0 {
                for &position in &self.positions[self.classes[at - 1]] {
                    last[position + 1] = 0;
                }
            }
            std::mem::swap(last, current);
        }
        if window.first.0 < window.first.1 {
            for &position in &self.positions[self.classes[window.first.1 - 1]] {
                last[position + 1] = 0;
            }
        }
        while best.first > window.first.0
            && best.second > window.second.0
            && self.first[best.first - 1] == self.second[best.second - 1]
        {
            best = Block { first: best.first - 1, second: best.second - 1, length: best.length + 1 };
        }
        while best.first + best.length < window.first.1
            && best.second + best.length < window.second.1
            && self.first[best.first + best.length] == self.second[best.second + best.length]
        {
            best.length += 1;
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition without tables: compares every run.
    fn by_definition(first: &[char], second: &[char], popular: &dyn Fn(char) -> bool) -> usize {
        if first.is_empty() || second.is_empty() {
            return 0;
        }
        let (mut from, mut to, mut length) = (0, 0, 0);
        for i in 0..first.len() {
            for j in 0..second.len() {
                let run =
                    first[i..].iter().zip(&second[j..]).take_while(|(a, b)| a == b && !popular(**a)).count();
                if run > length {
                    (from, to, length) = (i, j, run);
                }
            }
        }
        while from > 0 && to > 0 && first[from - 1] == second[to - 1] {
            (from, to, length) = (from - 1, to - 1, length + 1);
        }
        while from + length < first.len()
            && to + length < second.len()
            && first[from + length] == second[to + length]
        {
            length += 1;
        }
        if length == 0 {
            return 0;
        }
        length
            + by_definition(&first[..from], &second[..to], popular)
            + by_definition(&first[from + length..], &second[to + length..], popular)
    }

    #[test]
    fn matches_known_ratios() {
        assert_eq!(ratcliff_obershelp("abcd efgh", "abxd efgi"), 0.7777777777777778);
        assert_eq!(ratcliff_obershelp("", "a"), 0.0);
        assert_eq!(ratcliff_obershelp("a", ""), 0.0);
        assert_eq!(ratcliff_obershelp("abc", "xyz"), 0.0);
        // Equal, although every character is popular.
        let long = "ab".repeat(150);
        assert_eq!(ratcliff_obershelp(&long, &long), 1.0);
        // Popular characters start no block: difflib returns 0 here.
        assert_eq!(ratcliff_obershelp(&format!("x{long}"), &format!("y{long}")), 0.0);
        assert_eq!(ratcliff_obershelp("ünï ✓", "ünï ✗"), 0.8);
    }

    proptest! {
        #[test]
        fn equals_its_definition(first in "[abcde ]{0,40}", second in "[abcde ]{0,40}") {
            let a: Vec<char> = first.chars().collect();
            let b: Vec<char> = second.chars().collect();
            let wanted = if a.is_empty() || b.is_empty() { 0.0 } else {
                2.0 * by_definition(&a, &b, &|_| false) as f64 / (a.len() + b.len()) as f64
            };
            prop_assert_eq!(ratcliff_obershelp(&first, &second), wanted);
        }

        #[test]
        fn equals_its_definition_with_popular_characters(first in "[a-z]{100,220}", second in "[a-p]{200,260}") {
            let a: Vec<char> = first.chars().collect();
            let b: Vec<char> = second.chars().collect();
            let most = b.len() / 100 + 1;
            let popular = |c: char| b.iter().filter(|other| **other == c).count() > most;
            let table: std::collections::HashSet<char> = ('a'..='z').filter(|c| popular(*c)).collect();
            let wanted = 2.0 * by_definition(&a, &b, &|c| table.contains(&c)) as f64 / (a.len() + b.len()) as f64;
            prop_assert_eq!(ratcliff_obershelp(&first, &second), wanted);
        }
    }
}
