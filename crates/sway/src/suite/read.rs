//! From a text to a suite, or to everything that is wrong with it.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use weightloom_document::variables::Lookup;
use weightloom_document::{Coercion, Content, Mark, Node, Section, Sources, Validator, parse, read_text};
use weightloom_errors::nearest;

use super::entry::{SuiteEntry, with_entries};
use super::error::{SuiteErrors, SuiteProblem, SuiteRule, SuiteWarning, line};
use super::file::{File, HEAD, Head, ModelKind, ModelSpec};
use super::{Suite, SuiteOverrides, plan};
use crate::category::Category;
use crate::statistics::Statistics;

/// The outline of the whole file.
fn outline() -> &'static Section {
    static OUTLINE: OnceLock<Section> = OnceLock::new();
    // A test reads the schema.
    OUTLINE.get_or_init(|| {
        let schema = schemars::schema_for!(File).to_value();
        Section::from_json_schema(&schema).unwrap_or(Section { keys: Vec::new() })
    })
}

/// The outline of what every entry says.
fn head_outline() -> &'static Section {
    static OUTLINE: OnceLock<Section> = OnceLock::new();
    OUTLINE.get_or_init(|| {
        let schema = schemars::schema_for!(Head).to_value();
        Section::from_json_schema(&schema).unwrap_or(Section { keys: Vec::new() })
    })
}

impl Suite {
    /// Reads a suite from its file. `variable` looks up the home folder, for
    /// paths that begin with `~`.
    pub fn read_file(file: &Path, variable: Lookup<'_>) -> Result<Self, SuiteErrors> {
        Self::read_file_with(file, &SuiteOverrides::default(), variable)
    }

    /// The same, with what a command says over the file.
    pub fn read_file_with(
        file: &Path,
        overrides: &SuiteOverrides,
        variable: Lookup<'_>,
    ) -> Result<Self, SuiteErrors> {
        let text = read_text(file).map_err(|fault| SuiteErrors { errors: vec![fault] })?;
        Self::read_with(&text, file, overrides, variable)
    }

    /// Reads a suite. `file` is what the text is called; relative paths in it
    /// are told from the folder of that file.
    pub fn read(text: &str, file: &Path, variable: Lookup<'_>) -> Result<Self, SuiteErrors> {
        Self::read_with(text, file, &SuiteOverrides::default(), variable)
    }

    /// The same, with what a command says over the text.
    pub fn read_with(
        text: &str,
        file: &Path,
        overrides: &SuiteOverrides,
        variable: Lookup<'_>,
    ) -> Result<Self, SuiteErrors> {
        let name = file.display().to_string();
        let sources = Sources { file: &name, overrides: &[] };
        let root = parse(text, sources).map_err(|fault| SuiteErrors { errors: vec![fault] })?;
        let mut check = Validator::new(sources, outline(), Coercion::Lenient);
        let value = check.check_section(outline(), &root, root.mark, "");
        let entries = read_entries(&root, &name, &mut check);
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        let places = Places { folder, home: variable("HOME").map(PathBuf::from) };
        let read = value.and_then(|value| serde_json::from_value::<File>(value).ok());
        let Some(mut read) = read else {
            if check.errors.is_empty() {
                let message = "the types do not take it".to_owned();
                check.report(Mark::Default, "", SuiteProblem::Deserialize { message });
            }
            return Err(with_entries(check.errors, &entries));
        };
        if let Some(statistics) = overrides.statistics {
            read.defaults.statistics = statistics;
        }
        let mut judge = Judge { root: &root, unsure: check.suspect_paths.clone(), check };
        judge.rules(&read);
        let mut warnings = judge.same_names(&entries, read.defaults.statistics);
        if read.defaults.concurrent_probes != 1 {
            let why = "questions of all probes go together anyway".to_owned();
            warnings.push(SuiteWarning::NoEffect { key: "defaults.concurrent_probes".to_owned(), why });
        }
        places.resolve(&mut read);
        overrides.apply(&mut read);
        let decision = plan::decide(&read.models.base, &read.models.ft, &read.defaults, &places.folder);
        warnings.extend(decision.warnings);
        let plan = match decision.plan {
            Ok(plan) => Some(plan),
            Err(rules) => {
                for (path, rule) in rules {
                    judge.tell(&path, rule);
                }
                None
            }
        };
        match plan {
            Some(plan) if judge.check.errors.is_empty() => Ok(Self {
                file: name,
                base: read.models.base,
                tuned: read.models.ft,
                plan,
                source: read.dlm_source.map(PathBuf::from),
                defaults: read.defaults,
                warnings,
                entries,
            }),
            _ => Err(with_entries(judge.check.errors, &entries)),
        }
    }
}

/// The entries, as far as they are maps with a name and a kind.
fn read_entries(root: &Node, file: &str, check: &mut Validator<'_, SuiteRule>) -> Vec<SuiteEntry> {
    let Content::Map(map) = &root.content else { return Vec::new() };
    let Some(list) = map.iter().rev().find(|entry| entry.key == "suite") else { return Vec::new() };
    let Content::List(list) = &list.value.content else { return Vec::new() };
    let mut entries = Vec::new();
    for (index, node) in list.iter().enumerate() {
        let Content::Map(map) = &node.content else { continue };
        let path = format!("suite.{index}");
        let (head, rest): (Vec<_>, Vec<_>) =
            map.iter().cloned().partition(|entry| HEAD.contains(&entry.key.as_str()));
        let kind_mark =
            head.iter().find(|entry| entry.key == "kind").map_or(node.mark, |entry| entry.value.mark);
        let head = Node::new(node.mark, Content::Map(head));
        let rest = Node::new(node.mark, Content::Map(rest));
        // What is no JSON in the rest was told with the whole file already.
        let mut again = Validator::<SuiteRule>::new(check.sources, check.schema, Coercion::Lenient);
        let fields = match again.to_json(&rest, &path) {
            Some(Value::Object(fields)) => fields,
            _ => continue,
        };
        let before = check.errors.len();
        let value = check.check_section(head_outline(), &head, node.mark, &path);
        // Keys that stand twice were told with the whole file as well.
        let mut found = check.errors.split_off(before);
        found.retain(|fault| !matches!(fault.problem, SuiteProblem::DuplicateKey));
        let sound = found.is_empty();
        check.errors.append(&mut found);
        let Some(head) = value.filter(|_| sound).and_then(|value| serde_json::from_value::<Head>(value).ok())
        else {
            continue;
        };
        entries.push(SuiteEntry {
            name: head.name,
            kind: head.kind,
            enabled: head.enabled,
            weight: head.weight,
            fields,
            origin: check.sources.origin(node.mark),
            file: file.to_owned(),
            index,
            mark: node.mark,
            kind_mark,
            node: rest,
        });
    }
    entries
}

/// Rules beyond types.
struct Judge<'a> {
    root: &'a Node,
    check: Validator<'a, SuiteRule>,
    /// Paths at which something is wrong already.
    unsure: Vec<String>,
}

impl Judge<'_> {
    fn tell(&mut self, path: &str, rule: SuiteRule) {
        // What is no model cannot be compared, and so on: one fault, told once.
        let covered = |unsure: &String| {
            path == unsure
                || path.strip_prefix(unsure.as_str()).is_some_and(|rest| rest.starts_with('.'))
                || (path.starts_with("models.") && unsure.starts_with("models"))
        };
        if self.unsure.iter().any(covered) {
            return;
        }
        self.check.report(self.root.mark_of(path), path, SuiteProblem::Rule(rule));
    }

    fn rules(&mut self, file: &File) {
        if file.version != 1 {
            self.tell("version", SuiteRule::Version { found: file.version });
        }
        let defaults = &file.defaults;
        if defaults.top_k == 0 {
            self.tell("defaults.top_k", SuiteRule::Outside { found: "0".to_owned(), wanted: "1 or more" });
        }
        if !(0.0..=1.0).contains(&defaults.coverage_threshold) {
            let found = defaults.coverage_threshold.to_string();
            let rule = SuiteRule::Outside { found, wanted: "a number from 0 to 1" };
            self.tell("defaults.coverage_threshold", rule);
        }
        if !(1..=32).contains(&defaults.concurrent_probes) {
            let found = defaults.concurrent_probes.to_string();
            let rule = SuiteRule::Outside { found, wanted: "a number from 1 to 32" };
            self.tell("defaults.concurrent_probes", rule);
        }
        if let Some(weights) = &defaults.score_weights {
            let mut sound = true;
            for (key, weight) in weights {
                let path = format!("defaults.score_weights.{key}");
                if Category::from_name(key).is_none() {
                    let near = nearest(key, Category::ALL.map(Category::name));
                    let near = near.and_then(Category::from_name).map(Category::name);
                    self.tell(&path, SuiteRule::Category { near });
                    sound = false;
                } else if *weight < 0.0 {
                    let rule = SuiteRule::Outside { found: weight.to_string(), wanted: "0 or more" };
                    self.tell(&path, rule);
                    sound = false;
                }
            }
            let weight = |category: Category| {
                weights.get(category.name()).copied().unwrap_or(category.default_weight())
            };
            if sound && Category::ALL.into_iter().map(weight).sum::<f64>() <= 0.0 {
                self.tell("defaults.score_weights", SuiteRule::NoWeight);
            }
        }
        for (path, text) in [
            ("models.base.base", Some(&file.models.base.base)),
            ("models.ft.base", Some(&file.models.ft.base)),
            ("models.base.adapter", file.models.base.adapter.as_ref()),
            ("models.ft.adapter", file.models.ft.adapter.as_ref()),
            ("dlm_source", file.dlm_source.as_ref()),
            ("defaults.packs", defaults.packs.as_ref()),
            ("defaults.embedding", defaults.embedding.as_ref()),
        ] {
            if text.is_some_and(|text| text.trim().is_empty()) {
                self.tell(path, SuiteRule::Empty);
            }
        }
    }

    /// Names that stand twice: faults, or warnings where dlm-sway's files must
    /// run.
    fn same_names(&mut self, entries: &[SuiteEntry], statistics: Statistics) -> Vec<SuiteWarning> {
        let mut warnings = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let Some(earlier) = entries[..index].iter().find(|earlier| earlier.name == entry.name) else {
                continue;
            };
            let (name, earlier) = (entry.name.clone(), line(&earlier.origin));
            match statistics {
                Statistics::Reference => {
                    let line = line(&entry.origin);
                    warnings.push(SuiteWarning::DuplicateName { name, line, earlier });
                }
                Statistics::Paired => {
                    let rule = SuiteRule::DuplicateName { name, line: earlier };
                    self.tell(&format!("suite.{}.name", entry.index), rule);
                }
            }
        }
        warnings
    }
}

/// What relative paths are told from.
struct Places {
    folder: PathBuf,
    home: Option<PathBuf>,
}

impl Places {
    fn resolve(&self, file: &mut File) {
        for model in [&mut file.models.base, &mut file.models.ft] {
            self.resolve_model(model);
        }
        let defaults = &mut file.defaults;
        for path in [&mut file.dlm_source, &mut defaults.packs, &mut defaults.embedding].into_iter().flatten()
        {
            *path = self.absolute(path).display().to_string();
        }
    }

    fn resolve_model(&self, model: &mut ModelSpec) {
        if let Some(adapter) = &mut model.adapter {
            *adapter = self.absolute(adapter).display().to_string();
        }
        // Elsewhere the name is the server's, or the user's own.
        if model.kind.is_local() || model.kind == ModelKind::Custom {
            let place = self.absolute(&model.base);
            if !model.base.trim().is_empty() && place.exists() {
                model.base = place.display().to_string();
            }
        }
    }

    fn absolute(&self, path: &str) -> PathBuf {
        let home = path.strip_prefix('~').filter(|rest| rest.is_empty() || rest.starts_with('/'));
        match (home, &self.home) {
            (Some(rest), Some(home)) => home.join(rest.trim_start_matches('/')),
            _ => self.folder.join(path),
        }
    }
}
