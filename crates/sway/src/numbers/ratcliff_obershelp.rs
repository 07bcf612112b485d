//! How alike two texts are, by the blocks that they share.
//!
//! This equals the ratio of Python's `difflib`, with its rule for long texts:
//! in a second text of 200 characters or more, a character that makes up over
//! a hundredth of it cannot begin a block.

use std::collections::HashMap;

/// From this length on, frequent characters of the second text are popular.
const POPULARITY_FROM: usize = 200;

/// Twice what the texts share, over what they have. Zero if one is empty.
///
/// The order matters: only the second text has popular characters, and of
/// equally long blocks the first one in the first text counts.
pub fn ratcliff_obershelp(first: &str, second: &str) -> f64 {
    let first: Vec<char> = first.chars().collect();
    let second: Vec<char> = second.chars().collect();
    if first.is_empty() || second.is_empty() {
        return 0.0;
    }
    let shared = Blocks::new(&first, &second).shared();
    2.0 * shared as f64 / (first.len() + second.len()) as f64
}

/// A part of both texts.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: (usize, usize),
    second: (usize, usize),
}

/// Equal characters of both texts.
#[derive(Clone, Copy, Debug)]
struct Block {
    first: usize,
    second: usize,
    length: usize,
}

struct Blocks<'a> {
    first: &'a [char],
    second: &'a [char],
    /// For each place of the first text, the places of the second that hold
    /// the same character, unless that is popular.
    equal: Vec<usize>,
    places: Vec<Vec<usize>>,
    /// How long the run is that ends at each place of the second text, for
    /// this and for the last place of the first.
    runs: [Vec<usize>; 2],
}

impl<'a> Blocks<'a> {
    fn new(first: &'a [char], second: &'a [char]) -> Self {
        let mut numbers: HashMap<char, usize> = HashMap::new();
        // Entry 0 is for characters that the second text has not.
        let mut places = vec![Vec::new()];
        for (place, character) in second.iter().enumerate() {
            let number = *numbers.entry(*character).or_insert_with(|| {
                places.push(Vec::new());
                places.len() - 1
            });
            places[number].push(place);
        }
        if second.len() >= POPULARITY_FROM {
            let most = second.len() / 100 + 1;
            for found in &mut places {
                if found.len() > most {
                    found.clear();
                }
            }
        }
        let equal = first.iter().map(|character| numbers.get(character).copied().unwrap_or(0)).collect();
        let runs = [vec![0; second.len() + 1], vec![0; second.len() + 1]];
        Self { first, second, equal, places, runs }
    }

    fn shared(mut self) -> usize {
        let mut shared = 0;
        let mut open = vec![Window { first: (0, self.first.len()), second: (0, self.second.len()) }];
        while let Some(window) = open.pop() {
            let block = self.longest(window);
            if block.length == 0 {
                continue;
            }
            shared += block.length;
            let left =
                Window { first: (window.first.0, block.first), second: (window.second.0, block.second) };
            let right = Window {
                first: (block.first + block.length, window.first.1),
                second: (block.second + block.length, window.second.1),
            };
            for part in [left, right] {
                if part.first.0 < part.first.1 && part.second.0 < part.second.1 {
                    open.push(part);
                }
            }
        }
        shared
    }

    /// The longest block of a window: seeded by characters that are not
    /// popular, then extended over any.
    fn longest(&mut self, window: Window) -> Block {
        let mut best = Block { first: window.first.0, second: window.second.0, length: 0 };
        let [last, current] = &mut self.runs;
        for at in window.first.0..window.first.1 {
            for &place in &self.places[self.equal[at]] {
                if place < window.second.0 {
                    continue;
                }
                if place >= window.second.1 {
                    break;
                }
                // Slot p + 1 belongs to place p, so that place 0 has a slot before it.
                let length = last[place] + 1;
                current[place + 1] = length;
                if length > best.length {
                    best = Block { first: at + 1 - length, second: place + 1 - length, length };
                }
            }
            // What the row before last left behind is cleared by its own places.
            if at > window.first.0 {
                for &place in &self.places[self.equal[at - 1]] {
                    last[place + 1] = 0;
                }
            }
            std::mem::swap(last, current);
        }
        if window.first.0 < window.first.1 {
            for &place in &self.places[self.equal[window.first.1 - 1]] {
                last[place + 1] = 0;
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

    /// The same by the definition: no tables, every run compared.
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
    fn known_ratios() {
        assert_eq!(ratcliff_obershelp("abcd efgh", "abxd efgi"), 0.7777777777777778);
        assert_eq!(ratcliff_obershelp("", "a"), 0.0);
        assert_eq!(ratcliff_obershelp("a", ""), 0.0);
        assert_eq!(ratcliff_obershelp("abc", "xyz"), 0.0);
        // Equal, although every character is popular.
        let long = "ab".repeat(150);
        assert_eq!(ratcliff_obershelp(&long, &long), 1.0);
        // Popular characters begin no block: difflib says 0 here.
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
