//! Parsing suite files.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use weightloom_document::schema::{Choice, Kind, Nullable};
use weightloom_document::variables::Lookup;
use weightloom_document::{Coercion, Content, Mark, Node, Section, Sources, Validator, parse, read_text};
use weightloom_errors::nearest;

use super::entry::{SuiteEntry, with_entries};
use super::error::{SuiteErrors, SuiteProblem, SuiteRule, SuiteWarning, line};
use super::file::{File, HEAD, Head, ModelKind, ModelSpec};
use super::{Suite, SuiteOverrides, SuiteReader, plan};
use crate::backend::{Backends, RegisteredBackend};
use crate::category::Category;
use crate::chat::ChatMode;
use crate::extensions::{Extensions, section_of};
use crate::probe::FieldProblem;
use crate::statistics::Statistics;

/// The schema of a file: the kinds of backends are those that are registered, and
/// `options` are those of the kind that the file names.
fn file_schema(root: &Node, backends: &Backends) -> Section {
    // A test reads the schema.
    let schema = schemars::schema_for!(File).to_value();
    let mut schema = Section::from_json_schema(&schema).unwrap_or(Section { keys: Vec::new() });
    let choice = |kind: &RegisteredBackend| Choice {
        name: kind.name().to_owned(),
        description: kind.summary().to_owned(),
    };
    let choices: Vec<Choice> = backends.kinds().iter().map(choice).collect();
    for side in ["models.base", "models.ft"] {
        if let Some(key) = schema.key_mut(&format!("{side}.kind")) {
            key.kind = Kind::Choice(choices.clone());
        }
        let default = ModelKind::default().to_string();
        let named = root.text_of(&format!("{side}.kind")).unwrap_or(&default);
        let options = backends.find(named).ok().map(|kind| section_of(&kind.schema()));
        if let (Some(Ok(options)), Some(key)) = (options, schema.key_mut(&format!("{side}.options"))) {
            if options.keys.iter().any(|option| option.default.is_none()) {
                (key.nullable, key.default) = (Nullable::No, None);
            }
            key.kind = Kind::Section(options);
        }
    }
    schema
}

/// The schema of the keys of every entry.
fn head_schema() -> &'static Section {
    static SCHEMA: OnceLock<Section> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let schema = schemars::schema_for!(Head).to_value();
        Section::from_json_schema(&schema).unwrap_or(Section { keys: Vec::new() })
    })
}

impl Suite {
    /// Reads a suite file. `variable` looks up the home folder, for paths that
    /// start with `~`.
    pub fn read_file(file: &Path, variable: Lookup<'_>) -> Result<Self, SuiteErrors> {
        SuiteReader::new(&Extensions::standard(), variable).read_file(file)
    }

    /// Reads a suite file with overrides.
    pub fn read_file_with(
        file: &Path,
        overrides: &SuiteOverrides,
        variable: Lookup<'_>,
    ) -> Result<Self, SuiteErrors> {
        let extensions = Extensions::standard();
        let reader = SuiteReader { overrides: overrides.clone(), ..SuiteReader::new(&extensions, variable) };
        reader.read_file(file)
    }

    /// Parses a suite. `file` names the text in errors; relative paths are
    /// relative to its folder.
    pub fn read(text: &str, file: &Path, variable: Lookup<'_>) -> Result<Self, SuiteErrors> {
        SuiteReader::new(&Extensions::standard(), variable).read(text, file)
    }

    /// Parses a suite with overrides.
    pub fn read_with(
        text: &str,
        file: &Path,
        overrides: &SuiteOverrides,
        variable: Lookup<'_>,
    ) -> Result<Self, SuiteErrors> {
        let extensions = Extensions::standard();
        let reader = SuiteReader { overrides: overrides.clone(), ..SuiteReader::new(&extensions, variable) };
        reader.read(text, file)
    }
}

impl SuiteReader<'_> {
    /// Reads a suite file.
    pub fn read_file(&self, file: &Path) -> Result<Suite, SuiteErrors> {
        let text = read_text(file).map_err(|error| SuiteErrors { errors: vec![error] })?;
        self.read(&text, file)
    }

    /// Parses a suite. `file` names the text in errors; relative paths are
    /// relative to its folder.
    pub fn read(&self, text: &str, file: &Path) -> Result<Suite, SuiteErrors> {
        let Self { extensions, overrides, variable } = self;
        let name = file.display().to_string();
        let sources = Sources { file: &name, overrides: &[] };
        let root = parse(text, sources).map_err(|error| SuiteErrors { errors: vec![error] })?;
        let schema = file_schema(&root, &extensions.backends);
        let mut check = Validator::new(sources, &schema, Coercion::Lenient);
        let value = check.check_section(&schema, &root, root.mark, "");
        let entries = read_entries(&root, &name, &mut check);
        let folder = file.parent().unwrap_or(Path::new("")).to_owned();
        let resolver = PathResolver { folder, home: variable("HOME").map(PathBuf::from) };
        let read = value.and_then(|value| serde_json::from_value::<File>(value).ok());
        let Some(mut read) = read else {
            if check.errors.is_empty() {
                let message = "cannot be deserialized".to_owned();
                check.report(Mark::Default, "", SuiteProblem::Deserialize { message });
            }
            return Err(with_entries(check.errors, &entries, &extensions.probes));
        };
        if let Some(statistics) = overrides.statistics {
            read.defaults.statistics = statistics;
        }
        let mut rules = RuleChecker { root: &root, unsure: check.suspect_paths.clone(), check };
        rules.check_all(&read);
        rules.check_options(&read.models.base, "models.base", &extensions.backends);
        rules.check_options(&read.models.ft, "models.ft", &extensions.backends);
        let mut warnings = rules.duplicate_names(&entries, read.defaults.statistics);
        if read.defaults.concurrent_probes != 1 {
            let why = "questions of all probes are asked together".to_owned();
            warnings.push(SuiteWarning::NoEffect { key: "defaults.concurrent_probes".to_owned(), why });
        }
        if read.defaults.system.is_some() && read.defaults.chat == ChatMode::Never {
            let why = "prompts are plain text".to_owned();
            warnings.push(SuiteWarning::NoEffect { key: "defaults.system".to_owned(), why });
        }
        resolver.resolve(&mut read);
        overrides.apply(&mut read);
        let decision = plan::decide(&read.models.base, &read.models.ft, &read.defaults, &resolver.folder);
        warnings.extend(decision.warnings);
        let plan = match decision.plan {
            Ok(plan) => Some(plan),
            Err(broken) => {
                for (path, rule) in broken {
                    rules.report(&path, rule);
                }
                None
            }
        };
        match plan {
            Some(plan) if rules.check.errors.is_empty() => Ok(Suite {
                file: name,
                base: read.models.base,
                tuned: read.models.ft,
                plan,
                source: read.dlm_source.map(PathBuf::from),
                defaults: read.defaults,
                warnings,
                entries,
                kinds: extensions.probes.clone(),
            }),
            _ => Err(with_entries(rules.check.errors, &entries, &extensions.probes)),
        }
    }
}

/// The entries that are maps with a name and a kind.
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
        // Values that are not JSON were reported with the whole file.
        let mut again = Validator::<SuiteRule>::new(check.sources, check.schema, Coercion::Lenient);
        let fields = match again.to_json(&rest, &path) {
            Some(Value::Object(fields)) => fields,
            _ => continue,
        };
        let before = check.errors.len();
        let value = check.check_section(head_schema(), &head, node.mark, &path);
        // Duplicate keys were reported with the whole file.
        let mut found = check.errors.split_off(before);
        found.retain(|error| !matches!(error.problem, SuiteProblem::DuplicateKey));
        let valid = found.is_empty();
        check.errors.append(&mut found);
        let Some(head) = value.filter(|_| valid).and_then(|value| serde_json::from_value::<Head>(value).ok())
        else {
            continue;
        };
        entries.push(SuiteEntry {
            name: head.name,
            kind: head.kind,
            enabled: head.enabled,
            weight: head.weight,
            chat: head.chat,
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

/// Checks rules beyond types.
struct RuleChecker<'a> {
    root: &'a Node,
    check: Validator<'a, SuiteRule>,
    /// Paths that already have an error.
    unsure: Vec<String>,
}

impl RuleChecker<'_> {
    fn report(&mut self, path: &str, rule: SuiteRule) {
        // Report one error only once.
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

    fn check_all(&mut self, file: &File) {
        if file.version != 1 {
            self.report("version", SuiteRule::Version { found: file.version });
        }
        let defaults = &file.defaults;
        if defaults.top_k == 0 {
            self.report("defaults.top_k", SuiteRule::Outside { found: "0".to_owned(), wanted: "1 or more" });
        }
        if !(0.0..=1.0).contains(&defaults.coverage_threshold) {
            let found = defaults.coverage_threshold.to_string();
            let rule = SuiteRule::Outside { found, wanted: "a number from 0 to 1" };
            self.report("defaults.coverage_threshold", rule);
        }
        if !(1..=32).contains(&defaults.concurrent_probes) {
            let found = defaults.concurrent_probes.to_string();
            let rule = SuiteRule::Outside { found, wanted: "a number from 1 to 32" };
            self.report("defaults.concurrent_probes", rule);
        }
        if let Some(weights) = &defaults.score_weights {
            let mut valid = true;
            for (key, weight) in weights {
                let path = format!("defaults.score_weights.{key}");
                if Category::from_name(key).is_none() {
                    let near = nearest(key, Category::ALL.map(Category::name));
                    let near = near.and_then(Category::from_name).map(Category::name);
                    self.report(&path, SuiteRule::Category { near });
                    valid = false;
                } else if *weight < 0.0 {
                    let rule = SuiteRule::Outside { found: weight.to_string(), wanted: "0 or more" };
                    self.report(&path, rule);
                    valid = false;
                }
            }
            let weight = |category: Category| {
                weights.get(category.name()).copied().unwrap_or(category.default_weight())
            };
            if valid && Category::ALL.into_iter().map(weight).sum::<f64>() <= 0.0 {
                self.report("defaults.score_weights", SuiteRule::NoWeight);
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
                self.report(path, SuiteRule::Empty);
            }
        }
    }

    /// Options that the kind of backend does not accept, beyond their types.
    fn check_options(&mut self, model: &ModelSpec, path: &str, backends: &Backends) {
        let Ok(kind) = backends.find(&model.kind.to_string()) else { return };
        for FieldProblem { field, problem } in kind.problems(&model.options.clone().unwrap_or_default()) {
            let path = match field.is_empty() {
                true => format!("{path}.options"),
                false => format!("{path}.options.{field}"),
            };
            self.report(&path, SuiteRule::Option { kind: kind.name().to_owned(), problem });
        }
    }

    /// Duplicate names: errors, or warnings under the reference statistics, since
    /// dlm-sway permits them.
    fn duplicate_names(&mut self, entries: &[SuiteEntry], statistics: Statistics) -> Vec<SuiteWarning> {
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
                    self.report(&format!("suite.{}.name", entry.index), rule);
                }
            }
        }
        warnings
    }
}

/// Resolves relative paths.
struct PathResolver {
    folder: PathBuf,
    home: Option<PathBuf>,
}

impl PathResolver {
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
        // Other kinds name a model on a server.
        if model.kind.is_local() || matches!(model.kind, ModelKind::Custom | ModelKind::Registered(_)) {
            let path = self.absolute(&model.base);
            if !model.base.trim().is_empty() && path.exists() {
                model.base = path.display().to_string();
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
