//! Lookup of cards by name.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;

use weightloom_errors::nearest;

use super::card::Card;
use super::document::{Document, Parsed};
use super::error::{CardError, SourceProblem};
use super::fields::{Resolved, Same};
use super::name::{CardName, Wanted};
use super::settings::USER;
use super::source::CardSource;
use super::value::{CardLocation, Field, Origin};

/// Limit for chains of bases.
const MAX_BASES: usize = 64;
/// Limit for names in a hint.
const MAX_NEAR: usize = 3;

/// Cards of several sources; later ones override earlier ones.
///
/// Cards are parsed on first use.
///
/// ```
/// use weightloom_hub::cards::{CardSource, CardStore};
///
/// let text = "name: small\nlicense: mit\n---\nname: large\nbase: small\nmodel_arch: 1b\n";
/// let store = CardStore::new([CardSource::built_in(&[("cards.yaml", text)])]);
/// let card = store.card("large")?;
/// assert_eq!((card.license(), card.model_arch()), (Some("mit"), Some("1b")));
/// # Ok::<(), weightloom_hub::cards::CardError>(())
/// ```
#[derive(Debug, Default)]
pub struct CardStore {
    sources: Vec<CardSource>,
    environments: Vec<String>,
    /// Documents by name and source.
    index: BTreeMap<Arc<str>, Vec<Spot>>,
}

/// A document of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spot {
    source: usize,
    document: usize,
}

/// A card that overrides others with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The name.
    pub name: String,
    /// Location of the card in effect.
    pub winner: CardLocation,
    /// Locations of the overridden cards, last source first.
    pub losers: Vec<CardLocation>,
}

/// One card in a chain of bases.
struct Link<'a> {
    name: CardName,
    spot: Spot,
    document: &'a Document,
    parsed: &'a Parsed,
}

/// An unusable card: its position in the chain, and the reason.
type Failed = (usize, CardError);

impl CardStore {
    /// A store of sources; the last one has priority.
    pub fn new(sources: impl IntoIterator<Item = CardSource>) -> Self {
        let sources: Vec<CardSource> = sources.into_iter().collect();
        let mut index: BTreeMap<Arc<str>, Vec<Spot>> = BTreeMap::new();
        for (source, cards) in sources.iter().enumerate() {
            for (document, card) in cards.documents.iter().enumerate() {
                if let Ok(name) = card.name() {
                    index.entry(Arc::clone(name)).or_default().push(Spot { source, document });
                }
            }
        }
        Self { sources, environments: Vec::new(), index }
    }

    /// Sets the environments, in the order of lookup.
    pub fn with_environments(mut self, environments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.environments = environments.into_iter().map(Into::into).collect();
        self
    }

    /// The environments, in the order of lookup.
    pub fn environments(&self) -> &[String] {
        &self.environments
    }

    /// Checks that each environment has at least one card, so that a typing error
    /// does not select other cards. `user` needs none.
    pub fn check_environments(&self) -> Result<(), CardError> {
        let mut known: Vec<&str> = self.names().filter_map(|name| Some(name.split_once('@')?.1)).collect();
        known.push(USER);
        known.sort_unstable();
        known.dedup();
        match self.environments.iter().find(|environment| !known.contains(&environment.as_str())) {
            None => Ok(()),
            Some(environment) => Err(CardError::UnknownEnvironment {
                environment: environment.clone(),
                near: nearest(environment, known.iter().copied()).map(str::to_owned),
                known: known.into_iter().map(str::to_owned).collect(),
            }),
        }
    }

    /// Looks up a card.
    pub fn card(&self, name: &str) -> Result<Card, CardError> {
        let asked = CardName::parse(name).ok_or_else(|| CardError::BadName { name: name.to_owned() })?;
        let environments = self.environments_for(&asked);
        let found = self.find(&asked, environments);
        let found =
            found.ok_or_else(|| CardError::Unknown { name: name.to_owned(), near: self.near(name) })?;
        self.resolve(found, environments)
    }

    /// Whether a card exists, valid or not.
    pub fn knows(&self, name: &str) -> bool {
        CardName::parse(name).is_some_and(|asked| self.find(&asked, self.environments_for(&asked)).is_some())
    }

    /// Full names of all cards, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.index.keys().map(|name| &**name)
    }

    /// All cards, by their exact names: `name` is the card that
    /// [`CardStore::card`] returns for `name@`.
    pub fn cards(&self) -> impl Iterator<Item = (&str, Result<Card, CardError>)> {
        self.names().map(|name| {
            let card = match name.contains('@') {
                true => self.card(name),
                false => self.card(&format!("{name}@")),
            };
            (name, card)
        })
    }

    /// All problems in the sources: unreadable files, invalid documents and
    /// duplicate cards. Parses all documents.
    pub fn problems(&self) -> Vec<SourceProblem> {
        let mut problems = Vec::new();
        for source in &self.sources {
            problems.extend(source.problems.iter().cloned());
            problems.extend(source.documents.iter().filter_map(|card| card.parsed().err().cloned()));
        }
        for (name, spots) in &self.index {
            for pair in spots.windows(2).filter(|pair| pair[0].source == pair[1].source) {
                let [first, second] = [pair[0], pair[1]].map(|spot| self.document(spot).location().clone());
                problems.push(SourceProblem::Duplicate { card: name.to_string(), first, second });
            }
        }
        problems
    }

    /// Cards that override others.
    pub fn overrides(&self) -> Vec<Override> {
        let overrides = self.index.iter().filter_map(|(name, spots)| {
            let winner = spots.last()?;
            let losers = spots.iter().rev().filter(|spot| spot.source < winner.source);
            let losers: Vec<CardLocation> =
                losers.map(|spot| self.document(*spot).location().clone()).collect();
            let winner = self.document(*winner).location().clone();
            (!losers.is_empty()).then(|| Override { name: name.to_string(), winner, losers })
        });
        overrides.collect()
    }

    /// Suggestions for an unknown name.
    pub(super) fn near(&self, name: &str) -> Vec<String> {
        let plain = name.split('@').next().unwrap_or(name);
        let same = self.names().filter(|other| other.split('@').next() == Some(plain));
        let mut near: Vec<String> = same.take(MAX_NEAR).map(str::to_owned).collect();
        if near.is_empty() {
            let plain_names = self.names().filter(|other| !other.contains('@'));
            near.extend(nearest(plain, plain_names).map(str::to_owned));
        }
        near
    }

    fn document(&self, spot: Spot) -> &Document {
        &self.sources[spot.source].documents[spot.document]
    }

    fn environments_for<'a>(&'a self, asked: &'a CardName) -> &'a [String] {
        match asked.wanted() {
            Wanted::Any => &self.environments,
            Wanted::Plain => &[],
            Wanted::Env(env) => slice::from_ref(env),
        }
    }

    /// The full name of the card for a name.
    fn find(&self, asked: &CardName, environments: &[String]) -> Option<CardName> {
        let plain = asked.plain();
        let there = |name: String| CardName::parse(&name).filter(|_| self.index.contains_key(name.as_str()));
        match asked.wanted() {
            Wanted::Env(env) => there(format!("{plain}@{env}")),
            Wanted::Plain => there(plain.to_owned()),
            Wanted::Any => {
                let variants = environments.iter().find_map(|env| there(format!("{plain}@{env}")));
                variants.or_else(|| there(plain.to_owned()))
            }
        }
    }

    fn resolve(&self, leaf: CardName, environments: &[String]) -> Result<Card, CardError> {
        let name = leaf.to_string();
        let wrap = |(depth, problem): Failed| match depth {
            0 => problem,
            _ => CardError::Base { card: name.clone(), problem: Box::new(problem) },
        };
        let chain = self.chain(leaf, environments).map_err(wrap)?;
        let mut resolved = Resolved::default();
        let mut below: Option<&Link<'_>> = None;
        for link in chain.iter().rev() {
            let same = match below {
                Some(below) if below.name.plain() != link.name.plain() => Same::Other,
                _ => Same::Name,
            };
            // Checked when the chain was built.
            if let Ok(written) = &link.parsed.written {
                resolved.change(written, same);
            }
            below = Some(link);
        }
        let lineage =
            chain.iter().map(|link| Origin::new(&link.parsed.name, link.document.location().clone()));
        let card = Card::new(name.clone(), lineage.collect(), resolved.finish());
        match card.check_addresses() {
            Ok(()) => Ok(card),
            Err((depth, problem)) => Err(wrap((depth, problem))),
        }
    }

    /// A card and its bases, itself first.
    fn chain(&self, leaf: CardName, environments: &[String]) -> Result<Vec<Link<'_>>, Failed> {
        let mut chain: Vec<Link<'_>> = Vec::new();
        let mut next = Some((leaf, self.sources.len()));
        while let Some((name, limit)) = next.take() {
            let depth = chain.len();
            let link = self.link(name, limit).map_err(|error| (depth, error))?;
            if let Some(first) = chain.iter().position(|other| other.spot == link.spot) {
                return Err((first, cycle(&chain[first..])));
            }
            if depth > MAX_BASES {
                let card = chain[0].name.to_string();
                return Err((0, CardError::TooDeep { card, limit: MAX_BASES }));
            }
            next = match base_of(&link) {
                Some(base) => Some(self.base(&link, base, environments).map_err(|error| (depth, error))?),
                None => None,
            };
            chain.push(link);
        }
        Ok(chain)
    }

    /// The card with an exact name in the last source before `limit`.
    fn link(&self, name: CardName, limit: usize) -> Result<Link<'_>, CardError> {
        let card = name.to_string();
        let spots = self.index.get(card.as_str()).map(Vec::as_slice).unwrap_or_default();
        let mut spots = spots.iter().rev().filter(|spot| spot.source < limit);
        let Some(&spot) = spots.next() else {
            return Err(CardError::Unknown { near: self.near(&card), name: card });
        };
        let document = self.document(spot);
        if let Some(other) = spots.next().filter(|other| other.source == spot.source) {
            let first = self.document(*other).location().clone();
            return Err(CardError::Duplicate { card, first, second: document.location().clone() });
        }
        let parsed =
            document.parsed().map_err(|problem| CardError::Invalid { card, problem: problem.clone() })?;
        match &parsed.written {
            Ok(_) => Ok(Link { name, spot, document, parsed }),
            Err(error) => Err(error.clone()),
        }
    }

    /// The card of a base, and the limit of its sources.
    fn base(
        &self,
        link: &Link<'_>,
        base: &Field,
        environments: &[String],
    ) -> Result<(CardName, usize), CardError> {
        let text = base.value.as_text().unwrap_or_default();
        let missing = || CardError::MissingBase {
            base: text.to_owned(),
            origin: base.origin.clone(),
            near: self.near(text).into_iter().filter(|near| *near != link.name.to_string()).collect(),
        };
        let asked = CardName::parse(text).ok_or_else(missing)?;
        let own = asked.plain() == link.name.plain();
        let found = self.find(&asked, if own { &[] } else { environments });
        match found {
            // The card's own name refers to the one it overrides.
            Some(name) if name == link.name => {
                let spots = self.index.get(name.to_string().as_str()).map(Vec::as_slice).unwrap_or_default();
                match spots.iter().any(|spot| spot.source < link.spot.source) {
                    true => Ok((name, link.spot.source)),
                    false => Err(cycle(slice::from_ref(link))),
                }
            }
            Some(name) => Ok((name, self.sources.len())),
            None => Err(missing()),
        }
    }
}

fn base_of<'a>(link: &Link<'a>) -> Option<&'a Field> {
    link.parsed.written.as_ref().ok()?.get("base")
}

/// The error for cyclic bases.
fn cycle(links: &[Link<'_>]) -> CardError {
    let names = links.iter().chain(links.first()).map(|link| link.name.to_string());
    let first = &links[0];
    let origin = base_of(first).map(|base| base.origin.clone());
    let origin = origin.unwrap_or_else(|| Origin::new(&first.parsed.name, first.document.location().clone()));
    CardError::Cycle { chain: names.collect(), origin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_cards_are_not_parsed() {
        let card =
            |n: usize| format!("---\n# Card {n}.\nname: c{n}\nbase: c{}\nmodel_config:\n  a: {n}\n", n / 2);
        let text: String = (1..100).map(card).collect();
        let store = CardStore::new([CardSource::built_in(&[("a.yaml", &format!("name: c0\n{text}"))])]);
        let parsed = || store.sources[0].documents.iter().filter(|card| card.is_parsed()).count();
        assert_eq!((store.names().count(), parsed()), (100, 0));
        assert_eq!(store.card("c3").unwrap().lineage().len(), 3);
        assert_eq!(parsed(), 3);
        assert_eq!(store.problems(), []);
        assert_eq!(parsed(), 100);
    }
}
