//! Checks of config values that need neither a model nor ranks.

use weightloom_document::Origin;

use super::rule::{ConfigErrors, ConfigFault, Problem, Rule};
use super::{
    Accelerator, Config, DataType, LoraConfig, LossKind, OptimizerConfig, OptimizerKind, PipelineSchedule,
    Resume, ScheduleKind,
};

use crate::extensions::{Extensions, OptionProblem};

impl Config {
    /// Checks all values, as far as that needs neither a model nor ranks.
    /// [`read`](super::read) does the same; call this for a config built in
    /// code.
    pub fn check(&self) -> Result<(), ConfigErrors> {
        self.check_with(&Extensions::standard())
    }

    /// Checks the values of a config that may name what is registered.
    pub fn check_with(&self, extensions: &Extensions) -> Result<(), ConfigErrors> {
        let errors: Vec<ConfigFault> = broken_rules(self, extensions)
            .into_iter()
            .map(|broken| ConfigFault {
                origin: Origin::Code,
                path: broken.path().to_owned(),
                problem: Problem::Rule(broken.rule),
            })
            .collect();
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors { errors }) }
    }
}

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    /// The keys involved, the one to report first.
    pub paths: Vec<String>,
    pub rule: Rule,
}

impl Broken {
    pub(super) fn path(&self) -> &str {
        self.paths.first().map_or("", String::as_str)
    }
}

/// All violated rules.
pub(super) fn broken_rules(config: &Config, extensions: &Extensions) -> Vec<Broken> {
    let mut rules = Rules { broken: Vec::new() };
    rules.model(config);
    rules.data(config);
    rules.steps(config);
    rules.accelerator(&config.train.accelerator);
    rules.optimizer(&config.train.optimizer);
    rules.loss(config);
    rules.ema(config);
    rules.schedule(config);
    rules.output(config);
    rules.callbacks(config, extensions);
    rules.options("train.loss.options", &extensions.losses.problems(&config.train.loss));
    rules.options("train.optimizer.options", &extensions.optimizers.problems(&config.train.optimizer));
    rules.options("train.schedule.options", &extensions.schedules.problems(&config.train.schedule));
    rules.broken
}

struct Rules {
    broken: Vec<Broken>,
}

/// Whether a number is finite and not negative.
fn is_non_negative(value: f64) -> bool {
    value.is_finite() && value >= 0.0
}

/// Whether a name can be a part of the names of metrics.
fn is_metric_name(name: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    !name.is_empty() && name.chars().all(fits)
}

impl Rules {
    fn report(&mut self, paths: &[&str], rule: Rule) {
        self.broken.push(Broken { paths: paths.iter().map(|path| (*path).to_owned()).collect(), rule });
    }

    fn at_least(&mut self, path: &str, found: u64, least: u64) {
        if found < least {
            self.report(&[path], Rule::Below { found, least });
        }
    }

    fn number(&mut self, path: &str, found: f64, wanted: &'static str, fits: impl Fn(f64) -> bool) {
        if !fits(found) {
            self.report(&[path], Rule::Outside { found: found.to_string(), wanted });
        }
    }

    fn not_empty(&mut self, path: &str, text: &str, advice: &'static str) {
        if text.trim().is_empty() {
            self.report(&[path], Rule::Empty { advice });
        }
    }

    fn none_empty<'t>(
        &mut self,
        path: &str,
        texts: impl IntoIterator<Item = &'t String>,
        advice: &'static str,
    ) {
        for (index, text) in texts.into_iter().enumerate() {
            self.not_empty(&format!("{path}.{index}"), text, advice);
        }
    }

    fn model(&mut self, config: &Config) {
        let model = &config.model;
        self.not_empty("model.name", &model.name, "name a model, such as llama");
        let texts = [
            ("model.arch", &model.arch),
            ("model.weights_path", &model.weights_path),
            ("model.tokenizer_path", &model.tokenizer_path),
        ];
        for (path, text) in texts {
            if let Some(text) = text {
                self.not_empty(path, text, "set it to null, or remove it");
            }
        }
        self.none_empty(
            "model.freeze_modules",
            &model.freeze_modules,
            "name parameters, such as model.layers.0",
        );
        if model.tp_plan.keys().any(|pattern| pattern.trim().is_empty()) {
            self.report(&["model.tp_plan"], Rule::Empty { advice: "name the parameter to shard" });
        }
        if let Some(lora) = &model.lora {
            self.lora(lora);
        }
    }

    fn lora(&mut self, lora: &LoraConfig) {
        self.at_least("model.lora.rank", lora.rank as u64, 1);
        self.number("model.lora.alpha", lora.alpha, "a positive number", |alpha| {
            alpha.is_finite() && alpha > 0.0
        });
        self.number("model.lora.dropout", lora.dropout, "a number from 0 to below 1", |share| {
            (0.0..1.0).contains(&share)
        });
        let path = "model.lora.target_modules";
        if lora.target_modules.is_empty() {
            self.report(&[path], Rule::Empty { advice: "name modules, such as q_proj" });
        }
        self.none_empty(path, &lora.target_modules, "name modules, such as q_proj");
        if let Some(text) = &lora.adapter_path {
            self.not_empty("model.lora.adapter_path", text, "set it to null, or remove it");
        }
    }

    fn data(&mut self, config: &Config) {
        let data = &config.data;
        self.at_least("data.max_seq_len", data.max_seq_len as u64, 2);
        self.number("data.max_dropped", data.max_dropped, "a share from 0 to 1", |share| {
            (0.0..=1.0).contains(&share)
        });
        match &data.dataset {
            None if data.r#type == DataType::Files && data.paths.is_empty() && data.mixture.is_empty() => {
                let advice = "list files or folders, or set `data.type` to `dummy`";
                self.report(&["data.paths", "data.type"], Rule::Empty { advice });
            }
            Some(name) => {
                self.not_empty("data.dataset", name, "set it to null, or remove it");
                if !data.paths.is_empty() {
                    self.report(&["data.dataset", "data.paths"], Rule::Excludes { other: "data.paths" });
                }
            }
            None => {}
        }
        for (at, set) in data.mixture.iter().enumerate() {
            let path = format!("data.mixture.{at}");
            let wanted = "a positive number";
            self.number(&format!("{path}.weight"), set.weight, wanted, |weight| {
                weight.is_finite() && weight > 0.0
            });
            if let Some(epochs) = set.epochs {
                self.at_least(&format!("{path}.epochs"), epochs, 1);
            }
            if set.paths.is_empty() {
                self.report(&[&format!("{path}.paths")], Rule::Empty { advice: "name files or folders" });
            }
            self.none_empty(&format!("{path}.paths"), &set.paths, "name a file or a folder");
        }
        let endless = data.mixture.iter().position(|set| set.epochs.is_none());
        if let (None, Some(at)) = (config.train.max_steps, endless) {
            let other = "train.max_steps";
            let rule = Rule::Needs {
                found: "a set without `epochs`".to_owned(),
                other,
                wanted: "a number of steps",
            };
            self.report(&[&format!("data.mixture.{at}"), other], rule);
        }
        for (other, is_set) in
            [("data.paths", !data.paths.is_empty()), ("data.dataset", data.dataset.is_some())]
        {
            if is_set && !data.mixture.is_empty() {
                self.report(&["data.mixture", other], Rule::Excludes { other });
            }
        }
        self.none_empty("data.paths", &data.paths, "name a file or a folder");
        self.none_empty("data.eval_paths", &data.eval_paths, "name a file or a folder");
        for (name, set) in &data.eval_sets {
            let path = format!("data.eval_sets.{name}");
            if !is_metric_name(name) {
                let wanted = "a name of letters, digits, `_`, `-` and `.`";
                self.report(&[&path], Rule::Outside { found: format!("`{name}`"), wanted });
            }
            if set.paths.is_empty() {
                self.report(&[&format!("{path}.paths")], Rule::Empty { advice: "list files or folders" });
            }
            self.none_empty(&format!("{path}.paths"), &set.paths, "name a file or a folder");
        }
        if let Some(text) = &data.chat_template {
            self.not_empty("data.chat_template", text, "set it to null, or remove it");
        }
    }

    fn steps(&mut self, config: &Config) {
        let train = &config.train;
        if let Some(steps) = train.max_steps {
            self.at_least("train.max_steps", steps, 1);
        } else if train.epochs == 0 {
            self.report(&["train.epochs", "train.max_steps"], Rule::Below { found: 0, least: 1 });
        }
        let whole = train.global_batch_size;
        self.at_least("train.global_batch_size", whole as u64, 1);
        if let Some(found) = train.micro_batch_size {
            let of = "train.global_batch_size";
            self.at_least("train.micro_batch_size", found as u64, 1);
            if found > 0 && whole > 0 && !whole.is_multiple_of(found) {
                self.report(&["train.micro_batch_size", of], Rule::Divides { found, of, whole });
            }
        }
    }

    fn accelerator(&mut self, accelerator: &Accelerator) {
        let Accelerator { dp_replicate, dp_shard, tp, cp, pp, ep, vpp, .. } = *accelerator;
        let name = |key: &str| format!("train.accelerator.{key}");
        for (key, size) in [("dp_replicate", dp_replicate), ("tp", tp), ("pp", pp), ("vpp", vpp)] {
            self.at_least(&name(key), size as u64, 1);
        }
        if dp_shard < 1 && dp_shard != -1 {
            let rule = Rule::Outside { found: dp_shard.to_string(), wanted: "-1, or 1 or more" };
            self.report(&[&name("dp_shard")], rule);
        }
        for (key, found) in [("cp", cp), ("ep", ep)] {
            if found != 1 {
                self.report(&[&name(key)], Rule::NotYet { found, supported: 1 });
            }
        }
        if vpp > 1 && accelerator.pp_schedule != PipelineSchedule::Interleaved {
            let other = "train.accelerator.pp_schedule";
            let rule = Rule::Needs { found: vpp.to_string(), other, wanted: "interleaved" };
            self.report(&[&name("vpp"), other], rule);
        }
        if let Some(split) = &accelerator.layer_split {
            let path = name("layer_split");
            for (index, layers) in split.iter().enumerate() {
                self.at_least(&format!("{path}.{index}"), *layers as u64, 1);
            }
            let stages = pp.checked_mul(vpp).filter(|stages| *stages > 0);
            if let Some(expected) = stages.filter(|stages| *stages != split.len()) {
                let because = format!("pp={pp} × vpp={vpp}");
                let rule = Rule::Count { found: split.len(), expected, because };
                self.report(&[&path, &name("pp"), &name("vpp")], rule);
            }
        }
    }

    fn optimizer(&mut self, optimizer: &OptimizerConfig) {
        let name = |key: &str| format!("train.optimizer.{key}");
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let share = |value: f64| (0.0..1.0).contains(&value);
        self.number(&name("lr"), optimizer.lr, "a positive number", positive);
        self.number(&name("eps"), optimizer.eps, "a positive number", positive);
        for (index, beta) in optimizer.betas.into_iter().enumerate() {
            self.number(&name(&format!("betas.{index}")), beta, "a number from 0 to below 1", share);
        }
        self.number(&name("momentum"), optimizer.momentum, "a number from 0 to below 1", share);
        self.number(&name("weight_decay"), optimizer.weight_decay, "0 or more", is_non_negative);
        self.number(&name("max_grad_norm"), optimizer.max_grad_norm, "0 or more", is_non_negative);
        for (pattern, factor) in &optimizer.lr_scale {
            if !is_non_negative(*factor) {
                let found = format!("the factor {factor} of `{pattern}`");
                self.report(&[&name("lr_scale")], Rule::Outside { found, wanted: "0 or more" });
            }
        }
        self.without_effect(optimizer);
        self.none_empty(
            &name("no_decay"),
            &optimizer.no_decay,
            "name parameters, such as model.embed_tokens",
        );
    }

    /// Keys that optimizers with separate options do not read.
    fn without_effect(&mut self, optimizer: &OptimizerConfig) {
        let default = OptimizerConfig::default();
        let reads_adamw = matches!(optimizer.kind, OptimizerKind::Muon);
        let keys = [
            ("betas", !reads_adamw && optimizer.betas != default.betas),
            ("eps", !reads_adamw && optimizer.eps != default.eps),
            ("momentum", optimizer.momentum != default.momentum),
        ];
        let kinds = [
            OptimizerKind::Lion,
            OptimizerKind::Adafactor,
            OptimizerKind::ScheduleFreeAdamW,
            OptimizerKind::Muon,
            OptimizerKind::AdamW8bit,
        ];
        for (key, _) in keys.into_iter().filter(|(_, is_set)| *is_set && kinds.contains(&optimizer.kind)) {
            let problem = format!(
                "has no effect with `{}`, whose settings are in `train.optimizer.options`",
                optimizer.kind.name()
            );
            self.report(&[&format!("train.optimizer.{key}")], Rule::Option { problem });
        }
    }

    fn loss(&mut self, config: &Config) {
        let loss = &config.train.loss;
        let (smoothing, z_loss) = ("train.loss.label_smoothing", "train.loss.z_loss");
        self.number(smoothing, loss.label_smoothing, "a number from 0 to 1", |share| {
            (0.0..=1.0).contains(&share)
        });
        self.number(z_loss, loss.z_loss, "0 or more", is_non_negative);
        let other = "train.loss.kind";
        for (path, value) in [(smoothing, loss.label_smoothing), (z_loss, loss.z_loss)] {
            if value != 0.0 && loss.kind != LossKind::CrossEntropy {
                let rule = Rule::Needs { found: value.to_string(), other, wanted: "cross_entropy" };
                self.report(&[path, other], rule);
            }
        }
    }

    fn ema(&mut self, config: &Config) {
        let Some(ema) = &config.train.ema else { return };
        let share = |decay: f64| (0.0..1.0).contains(&decay);
        self.number("train.ema.decay", ema.decay, "a number from 0 to below 1", share);
        if let Some(limit) = config.train.max_steps.filter(|limit| ema.start_step > *limit) {
            let of = "train.max_steps";
            self.report(&["train.ema.start_step", of], Rule::Exceeds { found: ema.start_step, of, limit });
        }
    }

    fn schedule(&mut self, config: &Config) {
        let schedule = &config.train.schedule;
        let name = |key: &str| format!("train.schedule.{key}");
        self.number(&name("min_lr_ratio"), schedule.min_lr_ratio, "a number from 0 to 1", |ratio| {
            (0.0..=1.0).contains(&ratio)
        });
        self.number(&name("power"), schedule.power, "a positive number", |power| {
            power.is_finite() && power > 0.0
        });
        self.at_least(&name("cycles"), schedule.cycles, 1);
        if let Some(timescale) = schedule.timescale {
            self.at_least(&name("timescale"), timescale, 1);
            if schedule.kind != ScheduleKind::InverseSqrt {
                let (found, other) = (timescale.to_string(), "train.schedule.kind");
                let rule = Rule::Needs { found, other, wanted: "inverse_sqrt" };
                self.report(&[&name("timescale"), other], rule);
            }
        }
        let (decay_steps, of) = (schedule.decay_steps, "train.max_steps");
        if decay_steps.is_some() && schedule.kind != ScheduleKind::Wsd {
            let found = decay_steps.map_or_else(String::new, |steps| steps.to_string());
            let other = "train.schedule.kind";
            self.report(&[&name("decay_steps"), other], Rule::Needs { found, other, wanted: "wsd" });
        }
        let Some(limit) = config.train.max_steps else { return };
        if schedule.warmup_steps > limit {
            let rule = Rule::Exceeds { found: schedule.warmup_steps, of, limit };
            self.report(&[&name("warmup_steps"), of], rule);
        } else if let Some(steps) = decay_steps {
            let found = schedule.warmup_steps.saturating_add(steps);
            if found > limit {
                let paths = [&name("decay_steps"), of, &name("warmup_steps")];
                self.report(&paths, Rule::Exceeds { found, of, limit });
            }
        }
    }

    fn options(&mut self, path: &str, problems: &[OptionProblem]) {
        for OptionProblem { option, problem } in problems {
            let path = if option.is_empty() { path.to_owned() } else { format!("{path}.{option}") };
            self.report(&[&path], Rule::Option { problem: problem.clone() });
        }
    }

    fn callbacks(&mut self, config: &Config, extensions: &Extensions) {
        let callbacks = &config.train.callbacks;
        for unknown in extensions.callbacks.unknown(callbacks) {
            let path = format!("train.callbacks.{}", unknown.name);
            self.report(&[&path], Rule::Unknown(unknown));
        }
        for (name, problems) in extensions.callbacks.problems(callbacks) {
            self.options(&format!("train.callbacks.{name}"), &problems);
        }
    }

    fn guard(&mut self, config: &Config) {
        let train = &config.train;
        if let Some(spike) = &train.on_spike {
            self.at_least("train.on_spike.window", spike.window as u64, 2);
            self.number("train.on_spike.threshold", spike.threshold, "a positive number", |threshold| {
                threshold.is_finite() && threshold > 0.0
            });
        }
        let Some(stopping) = &train.eval.early_stopping else { return };
        let name = |key: &str| format!("train.eval.early_stopping.{key}");
        self.at_least(&name("patience"), stopping.patience, 1);
        self.number(&name("min_delta"), stopping.min_delta, "0 or more", is_non_negative);
        let needs = |other, wanted| Rule::Needs { found: "early stopping".to_owned(), other, wanted };
        let path = "train.eval.early_stopping";
        // A dataset card may have evaluation data.
        if !config.data.has_eval_data() && config.data.dataset.is_none() {
            self.report(&[path, "data.eval_paths"], needs("data.eval_paths", "a list of files"));
        }
        if train.eval.eval_steps == 0 {
            let other = "train.eval.eval_steps";
            self.report(&[path, other], needs(other, "1 or more"));
        }
    }

    fn output(&mut self, config: &Config) {
        let train = &config.train;
        self.not_empty(
            "train.checkpoint.output_dir",
            &train.checkpoint.output_dir,
            "name a folder, such as runs/first",
        );
        if let Some(from) = &train.checkpoint.resume_from {
            let path = "train.checkpoint.resume_from";
            self.not_empty(path, from, "set it to null, or remove it");
            if train.checkpoint.resume == Resume::Never {
                let other = "train.checkpoint.resume";
                let rule = Rule::Needs { found: format!("`{from}`"), other, wanted: "auto or always" };
                self.report(&[path, other], rule);
            }
        }
        self.number(
            "train.checkpoint.save_minutes",
            train.checkpoint.save_minutes,
            "0 or more",
            is_non_negative,
        );
        self.at_least("train.logging.logging_steps", train.logging.logging_steps, 1);
        if let Some(peak) = train.logging.peak_tflops {
            self.number("train.logging.peak_tflops", peak, "a positive number", |peak| {
                peak.is_finite() && peak > 0.0
            });
        }
        self.guard(config);
        let samples = &train.eval.samples;
        self.number("train.eval.samples.temperature", samples.temperature, "0 or more", is_non_negative);
        if !samples.prompts.is_empty() {
            self.at_least("train.eval.samples.max_new_tokens", samples.max_new_tokens as u64, 1);
        }
    }
}
