//! The decoder: its parameters, and the way through them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use weightloom_dtensor::{
    DTensor, DistContext, GradientReduction, NanCheck, PassContext, Release, recompute,
};
use weightloom_errors::nearest;
use weightloom_layout::{DType, Layout, Shape};
use weightloom_tensor::{Device, Tensor};

use crate::adapter::{Adapter, LowRank};
use crate::attention::{Attention, Standing};
use crate::cache::Cache;
use crate::changes::{Changes, part};
use crate::config::{DecoderConfig, NormKind, PositionConfig, ResidualForm};
use crate::error::NnError;
use crate::experts::Experts;
use crate::linear::Linear;
use crate::mlp::Mlp;
use crate::norm::Norm;
use crate::parameter::{EMBEDDING, HEAD, LAST_NORM, POSITIONS, parameters};
use crate::plan::{Plan, Positions, settled};
use crate::rope::Rope;
use crate::stage::Stage;

/// A decoder, or a stage of one, as one rank holds it.
pub struct Decoder {
    body: Arc<Body>,
    parameters: Vec<(String, DTensor)>,
}

/// All of it but the values of its parameters.
pub(crate) struct Body {
    config: DecoderConfig,
    stage: Stage,
    plan: Plan,
    dist: Arc<DistContext>,
    layers: Vec<Layer>,
    last_norm: Option<Norm>,
    rope: Option<Rope>,
    /// Where each parameter is when it is used.
    layouts: Vec<Layout>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stage { layers, of } = &self.body.stage;
        write!(f, "Decoder(layers {layers:?} of {of}, {} parameters)", self.parameters.len())
    }
}

/// Where the parameters of a layer are.
#[derive(Clone, Debug)]
struct Layer {
    /// All of them.
    places: Range<usize>,
    before_attention: Option<Norm>,
    attention: Attention,
    after_attention: Option<Norm>,
    before_mlp: Option<Norm>,
    mlp: Work,
    after_mlp: Option<Norm>,
}

#[derive(Clone, Debug)]
enum Work {
    Mlp(Mlp),
    Experts(Experts),
}

/// What goes into a stage.
#[derive(Clone, Debug)]
pub enum Input {
    /// Tokens, `[batch, time]`, of the dtype `i64`; rows that are shorter are
    /// filled up behind their end with anything.
    Tokens(DTensor),
    /// What the stage before gave, `[batch, time, hidden]`.
    Hidden(DTensor),
}

impl Input {
    fn with_nan_check(&self, check: &Arc<NanCheck>) -> Self {
        match self {
            Self::Tokens(tokens) => Self::Tokens(tokens.with_nan_check(check)),
            Self::Hidden(hidden) => Self::Hidden(hidden.with_nan_check(check)),
        }
    }
}

/// How a stage is gone through.
#[derive(Debug, Default)]
pub struct Pass<'a> {
    /// What was read before, to which this is added.
    pub cache: Option<&'a mut Cache>,
    /// How many tokens of each row count; all of them if not given.
    pub lengths: Option<&'a [usize]>,
    /// What changes the rows.
    pub changes: Changes<'a>,
    /// What the tape keeps of a layer.
    pub kept: Kept,
    /// What an adapter does not see.
    pub dropout: Option<Dropout>,
    /// How gradients are reduced, and what checks results.
    pub context: PassContext,
}

/// What the tape keeps of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kept {
    /// What its gradient needs.
    #[default]
    All,
    /// Its input. The rest is computed again.
    Input,
}

/// A share of what goes into an adapter that it does not see.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// The share.
    pub probability: f64,
    /// What chance is drawn from, another one in each pass.
    pub seed: u64,
}

/// One way through the decoder, with its adapters.
#[derive(Clone, Copy)]
pub(crate) struct Run<'a> {
    body: &'a Body,
    /// Parameters, beginning with one.
    parameters: &'a [(String, DTensor)],
    first: usize,
    changes: Changes<'a>,
    dropout: Option<Dropout>,
    gradient_reduction: GradientReduction,
}

impl<'a> Run<'a> {
    /// What the decoder is made of.
    pub(crate) fn config(&self) -> &'a DecoderConfig {
        &self.body.config
    }

    /// Where everything is.
    pub(crate) fn plan(&self) -> &'a Plan {
        &self.body.plan
    }

    /// What an adapter does not see.
    pub(crate) fn dropout(&self) -> Option<Dropout> {
        self.dropout
    }

    /// What changes the rows.
    pub(crate) fn changes(&self) -> Changes<'a> {
        self.changes
    }

    /// The same way for rows with other changes.
    pub(crate) fn with_changes(&self, changes: Changes<'a>) -> Self {
        Self { changes, ..*self }
    }

    /// What a parameter is called.
    pub(crate) fn name(&self, place: usize) -> &'a str {
        &self.parameters[place - self.first].0
    }

    /// What a parameter is used in.
    pub(crate) fn dtype_of(&self, place: usize) -> DType {
        let held = self.parameters[place - self.first].1.dtype();
        self.body.plan.usage().dtype.unwrap_or(held)
    }

    /// A parameter as it is used. Where groups of rows have changes of their
    /// own, none of these replaces it: see [`by_group`](Self::by_group).
    pub(crate) fn parameter(&self, place: usize) -> Result<DTensor, NnError> {
        let (name, value) = &self.parameters[place - self.first];
        let value = self.body.plan.used_in(self.body.layouts[place], value)?;
        let Changes::Same(Some((adapter, strength))) = self.changes else { return Ok(value) };
        match adapter.replacement(name) {
            None => Ok(value),
            Some(new) => new.between(&value, strength),
        }
    }

    /// What the adapter of all rows adds to a module.
    pub(crate) fn low_rank(&self, module: &str) -> Option<(&'a LowRank, f64)> {
        let Changes::Same(Some((adapter, strength))) = self.changes else { return None };
        Some((adapter.low_rank(module)?, strength))
    }
}

/// Finds parameters by name while a decoder is put together.
struct Places<'a> {
    by_name: BTreeMap<&'a str, usize>,
}

impl Places<'_> {
    fn find(&self, name: &str) -> Result<usize, NnError> {
        let found = self.by_name.get(name).copied();
        found.ok_or_else(|| NnError::MissingParameter { name: name.to_owned() })
    }

    fn linear(&self, module: &str) -> Result<Linear, NnError> {
        let weight = self.find(&format!("{module}.weight"))?;
        let bias = self.by_name.get(format!("{module}.bias").as_str()).copied();
        Ok(Linear { module: module.to_owned(), weight, bias })
    }

    fn norm(&self, kind: NormKind, module: &str) -> Result<Norm, NnError> {
        let weight = (kind != NormKind::LayerPlain).then(|| self.find(&format!("{module}.weight")));
        let bias = (kind == NormKind::Layer).then(|| self.find(&format!("{module}.bias")));
        Ok(Norm { weight: weight.transpose()?, bias: bias.transpose()? })
    }

    fn layer(&self, config: &DecoderConfig, number: usize) -> Result<Layer, NnError> {
        let layer = format!("model.layers.{number}");
        let of_layer = format!("{layer}.");
        let places =
            || self.by_name.iter().filter(|(name, _)| name.starts_with(&of_layer)).map(|(_, at)| *at);
        let (first, last) = (places().min().unwrap_or(0), places().max().map_or(0, |last| last + 1));
        let kind = config.norm.kind;
        let norm_if = |wanted: bool, name: &str| {
            wanted.then(|| self.norm(kind, &format!("{layer}.{name}"))).transpose()
        };
        let attention = |name: &str| self.linear(&format!("{layer}.self_attn.{name}_proj"));
        let mlp = |name: &str| self.linear(&format!("{layer}.mlp.{name}_proj"));
        let expert = |name: &str| self.find(&format!("{layer}.mlp.experts.{name}_proj.weight"));
        let qk_norm = |name: &str| self.norm(kind, &format!("{layer}.self_attn.{name}_norm"));
        let form = config.residual;
        let (before, after) =
            (form != ResidualForm::After, matches!(form, ResidualForm::After | ResidualForm::Around));
        let work = match config.experts(number) {
            Some(_) => Work::Experts(Experts {
                router: self.find(&format!("{layer}.mlp.gate.weight"))?,
                gate: expert("gate")?,
                up: expert("up")?,
                down: expert("down")?,
            }),
            None => {
                let gated = config.mlp.gating == crate::config::Gating::Gated;
                let gate = gated.then(|| mlp("gate")).transpose()?;
                Work::Mlp(Mlp { gate, up: mlp("up")?, down: mlp("down")? })
            }
        };
        Ok(Layer {
            places: first..last,
            before_attention: norm_if(before, "input_layernorm")?,
            attention: Attention {
                query: attention("q")?,
                key: attention("k")?,
                value: attention("v")?,
                output: attention("o")?,
                norms: match config.attention.qk_norm {
                    Some(_) => Some([qk_norm("q")?, qk_norm("k")?]),
                    None => None,
                },
            },
            after_attention: norm_if(after, "attention_output_layernorm")?,
            before_mlp: norm_if(before && form != ResidualForm::Parallel, "post_attention_layernorm")?,
            mlp: work,
            after_mlp: norm_if(after, "mlp_output_layernorm")?,
        })
    }
}

impl Decoder {
    /// A decoder of these parameters. There must be exactly those that
    /// [`parameters`] lists for the stage, held as the plan says.
    pub fn new(
        config: DecoderConfig,
        stage: Stage,
        plan: Plan,
        dist: Arc<DistContext>,
        values: Vec<(String, DTensor)>,
    ) -> Result<Self, NnError> {
        config.check()?;
        let mut given: BTreeMap<String, DTensor> = values.into_iter().collect();
        let mut held = Vec::new();
        for spec in parameters(&config, &stage) {
            let found = given.remove(&spec.name);
            let value = found.ok_or_else(|| NnError::MissingParameter { name: spec.name.clone() })?;
            if *value.shape() != spec.shape {
                let found = value.shape().clone();
                return Err(NnError::ParameterShape { name: spec.name, found, expected: spec.shape });
            }
            held.push((spec.name, value));
        }
        if let Some((name, _)) = given.into_iter().next() {
            let near = nearest(&name, held.iter().map(|(name, _)| name.as_str())).map(str::to_owned);
            return Err(NnError::UnknownParameter { name, near });
        }
        let by_name = held.iter().enumerate().map(|(place, (name, _))| (name.as_str(), place)).collect();
        let places = Places { by_name };
        let layers =
            stage.layers.clone().map(|layer| places.layer(&config, layer)).collect::<Result<_, _>>()?;
        let last_norm = stage.is_last().then(|| places.norm(config.norm.kind, LAST_NORM)).transpose()?;
        let rope = match &config.positions {
            PositionConfig::Rope(rope) => Some(Rope::new(rope, config.attention.width)),
            PositionConfig::Learned => None,
        };
        let layouts = held.iter().map(|(name, _)| plan.used_layout_of(name)).collect();
        let body = Arc::new(Body { layers, last_norm, rope, config, stage, plan, dist, layouts });
        Ok(Self { body, parameters: held })
    }

    /// What it is made of.
    pub fn config(&self) -> &DecoderConfig {
        &self.body.config
    }

    /// Which layers it has.
    pub fn stage(&self) -> &Stage {
        &self.body.stage
    }

    /// Where its parameters are.
    pub fn plan(&self) -> &Plan {
        &self.body.plan
    }

    /// The ranks that share it.
    pub fn dist(&self) -> &Arc<DistContext> {
        &self.body.dist
    }

    /// Its parameters by name, in the order in which they are used.
    pub fn parameters(&self) -> &[(String, DTensor)] {
        &self.parameters
    }

    /// The same, to be changed. Shapes and layouts must stay.
    pub fn parameters_mut(&mut self) -> &mut [(String, DTensor)] {
        &mut self.parameters
    }

    /// One parameter.
    pub fn parameter(&self, name: &str) -> Option<&DTensor> {
        self.place(name).map(|place| &self.parameters[place].1)
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.parameters.iter().position(|(found, _)| found == name)
    }

    pub(crate) fn run<'a>(&'a self, changes: Changes<'a>) -> Run<'a> {
        Run {
            body: &self.body,
            parameters: &self.parameters,
            first: 0,
            changes,
            dropout: None,
            gradient_reduction: GradientReduction::Deferred,
        }
    }

    /// Rows of tokens as a tensor that every rank has whole; shorter ones are
    /// filled up behind their end.
    pub fn tokens(&self, rows: &[&[u32]]) -> Result<DTensor, NnError> {
        let vocabulary = self.body.config.vocabulary;
        let time = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let mut all = Vec::with_capacity(rows.len() * time);
        for row in rows {
            if let Some(&token) = row.iter().find(|token| **token as usize >= vocabulary) {
                return Err(NnError::UnknownToken { token, vocabulary });
            }
            all.extend(row.iter().map(|&token| i64::from(token)));
            all.extend(std::iter::repeat_n(0, time - row.len()));
        }
        let tokens = Tensor::from_slice(&all, &[rows.len(), time])?;
        Ok(DTensor::distribute(&self.body.dist, &tokens, Layout::replicated(self.body.plan.mesh()))?)
    }

    /// Through all layers of the stage. Of the last stage, the result is ready
    /// for [`logits`](Self::logits): its norm is done.
    pub fn hidden(&self, input: Input, pass: Pass<'_>) -> Result<DTensor, NnError> {
        let Pass { mut cache, lengths, changes, kept, dropout, context } = pass;
        let body = &self.body;
        let input = match &context.nan_check {
            Some(check) => input.with_nan_check(check),
            None => input,
        };
        let given = match &input {
            Input::Tokens(tokens) => tokens,
            Input::Hidden(hidden) => hidden,
        };
        let [batch, time] = [given.shape()[0], given.shape()[1]];
        if let Some(found) = cache.as_ref().map(|cache| cache.lengths().len()).filter(|rows| *rows != batch) {
            return Err(NnError::CacheRows { found, asked: batch });
        }
        let starts = cache.as_ref().map_or_else(|| vec![0; batch], |cache| cache.lengths().to_vec());
        changes.check(batch)?;
        self.check_length(&starts, lengths, time)?;
        let (layout, device) = (given.layout(), given.device());
        let standing = Standing::new(&body.dist, layout, body.rope.as_ref(), [batch, time], starts, device)?;
        let gradient_reduction = context.gradient_reduction;
        let run = Run { dropout, gradient_reduction, ..self.run(changes) };
        let x = self.through_layers(&run, input, Arc::new(standing), cache.as_deref_mut(), kept)?;
        if let Some(cache) = cache {
            match lengths {
                Some(lengths) => cache.advance(lengths.iter().copied()),
                None => cache.advance(std::iter::repeat_n(time, batch)),
            }
        }
        Ok(x)
    }

    /// The same for tokens that stand somewhere.
    pub(crate) fn through_layers(
        &self,
        run: &Run<'_>,
        input: Input,
        standing: Arc<Standing>,
        mut cache: Option<&mut Cache>,
        kept: Kept,
    ) -> Result<DTensor, NnError> {
        let body = &self.body;
        if body.plan.usage().ahead > 0 {
            self.fetch(0..body.plan.usage().ahead)?;
        }
        let mut x = match input {
            Input::Tokens(tokens) => body.plan.left(self.embedded(run, &tokens, &standing)?)?,
            Input::Hidden(hidden) => hidden,
        };
        for place in 0..body.layers.len() {
            x = self.watched_below(place, x, run)?;
            let ahead = place + body.plan.usage().ahead;
            if ahead > place {
                self.fetch(ahead..ahead + 1)?;
            }
            x = match (&mut cache, kept) {
                (None, Kept::Input) => self.again(place, x, &standing, run)?,
                (cache, _) => {
                    let cache = cache.as_deref_mut().map(|cache| (cache, place));
                    body.through(run, place, x, &standing, cache)?
                }
            };
            x = self.watched_above(place, x)?;
        }
        match &body.last_norm {
            Some(norm) => body.plan.entered(norm.apply(run, &body.config.norm, &x)?),
            None => Ok(x),
        }
    }

    /// Tokens of one position each, `[rows, 1]`.
    pub(crate) fn standing(&self, tokens: &DTensor, positions: Vec<usize>) -> Result<Standing, NnError> {
        let (body, dims) = (&self.body, [positions.len(), 1]);
        Standing::new(&body.dist, tokens.layout(), body.rope.as_ref(), dims, positions, tokens.device())
    }

    /// A layer of which only the input is kept.
    fn again(
        &self,
        place: usize,
        x: DTensor,
        standing: &Arc<Standing>,
        run: &Run<'_>,
    ) -> Result<DTensor, NnError> {
        let dropout = run.dropout;
        let (body, standing) = (Arc::clone(&self.body), Arc::clone(standing));
        let places = body.layers[place].places.clone();
        let parameters = self.parameters[places.clone()].to_vec();
        let number = body.stage.layers.start + place;
        let changes = run.changes.below(&format!("model.layers.{number}."));
        let trained: Vec<DTensor> = parameters
            .iter()
            .map(|(_, value)| value)
            .chain(changes.values())
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        let made = recompute(&[x], &trained, move |x| {
            let x = changes.with(|changes| {
                let run = Run {
                    body: &body,
                    parameters: &parameters,
                    first: places.start,
                    changes,
                    dropout,
                    gradient_reduction: GradientReduction::Deferred,
                };
                body.through(&run, place, x[0].clone(), &standing, None)
            });
            Ok(vec![x.map_err(NnError::into_dtensor)?])
        })?;
        made.into_iter().next().ok_or_else(|| self.wrong_stage("compute a layer"))
    }

    /// Begins to gather the parameters of some layers.
    fn fetch(&self, layers: Range<usize>) -> Result<(), NnError> {
        for layer in self.body.layers.iter().skip(layers.start).take(layers.len()) {
            for place in layer.places.clone() {
                self.body.plan.ahead(self.body.layouts[place], &self.parameters[place].1)?;
            }
        }
        Ok(())
    }

    /// What a layer makes. When its gradient comes, the parameters of the layer
    /// before are gathered again.
    fn watched_above(&self, place: usize, x: DTensor) -> Result<DTensor, NnError> {
        let usage = self.body.plan.usage();
        let x = match x.nan_check().cloned() {
            Some(check) => {
                let number = self.body.stage.layers.start + place;
                x.register_hook(move || {
                    check.enter_module(&format!("model.layers.{number}"));
                    Ok(())
                })?
            }
            None => x,
        };
        if usage.ahead == 0 || usage.release == Release::Keep || !x.tracks_gradient() {
            return Ok(x);
        }
        let Some(before) = place.checked_sub(usage.ahead) else { return Ok(x) };
        let (body, places) = (Arc::clone(&self.body), self.body.layers[before].places.clone());
        let values: Vec<DTensor> =
            self.parameters[places.clone()].iter().map(|(_, value)| value.clone()).collect();
        Ok(x.register_hook(move || {
            let mut all = values.iter().zip(&body.layouts[places.clone()]);
            all.try_for_each(|(value, layout)| body.plan.ahead(*layout, value))
        })?)
    }

    /// What goes into a layer. When its gradient comes, those of the layer's
    /// parameters are whole, and can be summed over ranks while the pass goes
    /// on, if this is the last one.
    fn watched_below(&self, place: usize, x: DTensor, run: &Run<'_>) -> Result<DTensor, NnError> {
        let deferred = run.gradient_reduction == GradientReduction::Deferred;
        if deferred || !self.body.dist.overlaps() || !x.tracks_gradient() {
            return Ok(x);
        }
        let number = self.body.stage.layers.start + place;
        let changes = run.changes.below(&format!("model.layers.{number}."));
        let values: Vec<DTensor> = self.parameters[self.body.layers[place].places.clone()]
            .iter()
            .map(|(_, value)| value)
            .chain(changes.values())
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        Ok(x.register_hook(move || values.iter().try_for_each(DTensor::reduce_gradient))?)
    }

    /// Learned positions end; turned ones go on, but not beyond what can be
    /// told apart.
    pub(crate) fn check_length(
        &self,
        starts: &[usize],
        lengths: Option<&[usize]>,
        time: usize,
    ) -> Result<(), NnError> {
        let reach = |(row, start): (usize, &usize)| {
            start + lengths.and_then(|lengths| lengths.get(row)).copied().unwrap_or(time)
        };
        let asked = starts.iter().enumerate().map(reach).max().unwrap_or(0);
        let most = self.body.config.max_positions;
        if self.body.config.positions == PositionConfig::Learned && asked > most {
            return Err(NnError::TooLong { asked, most });
        }
        Ok(())
    }

    fn embedded(&self, run: &Run<'_>, tokens: &DTensor, standing: &Standing) -> Result<DTensor, NnError> {
        let first = self.body.stage.is_first().then(|| self.place(EMBEDDING)).flatten();
        let place = first.ok_or_else(|| self.wrong_stage("begin with tokens"))?;
        let positions = self.place(POSITIONS);
        let module = EMBEDDING.trim_end_matches(".weight");
        let touches = |adapter: &Adapter| {
            adapter.replaces(EMBEDDING) || adapter.replaces(POSITIONS) || adapter.low_rank(module).is_some()
        };
        run.by_group(tokens.shape()[0], touches, |run, rows| {
            if let Some(check) = tokens.nan_check() {
                check.enter_module(EMBEDDING);
            }
            let tokens = part(tokens, rows)?;
            let mut x = run.parameter(place)?.embedding(&tokens)?;
            if let Some((low_rank, strength)) = run.low_rank(module) {
                x = low_rank.changed_embedding(&x, &tokens, strength)?;
            }
            x = settled(x)?;
            if let Some(scale) = self.body.config.embedding_scale {
                x = x.scale(scale)?;
            }
            match positions {
                None => Ok(x),
                Some(place) => {
                    let positions = self.positions(&standing.starts[rows.clone()], &tokens)?;
                    Ok(x.add(&settled(run.parameter(place)?.embedding(&positions)?)?)?)
                }
            }
        })
    }

    /// The positions of tokens in rows that begin there.
    fn positions(&self, starts: &[usize], tokens: &DTensor) -> Result<DTensor, NnError> {
        let time = tokens.shape()[1];
        let last = self.body.config.max_positions as i64 - 1;
        // What fills up shorter rows may stand behind the last position.
        let positions: Vec<i64> = starts
            .iter()
            .flat_map(|&start| (start..start + time).map(|position| (position as i64).min(last)))
            .collect();
        let positions = match tokens.device() {
            Device::Meta => Tensor::zeros(DType::I64, tokens.shape(), Device::Meta)?,
            _ => Tensor::from_slice(&positions, tokens.shape())?,
        };
        let replicated = Layout::replicated(self.body.plan.mesh());
        Ok(DTensor::distribute(&self.body.dist, &positions, replicated)?)
    }

    /// Logits, `[…, vocabulary]`, of what [`hidden`](Self::hidden) gave, or of
    /// some of its rows.
    pub fn logits<'a>(
        &'a self,
        hidden: &DTensor,
        changes: impl Into<Changes<'a>>,
    ) -> Result<DTensor, NnError> {
        let changes = changes.into();
        changes.check(hidden.shape()[0])?;
        let touches =
            |adapter: &Adapter| adapter.changes_head(HEAD) || adapter.replaces(&format!("{HEAD}.bias"));
        self.run(changes)
            .by_group(hidden.shape()[0], touches, |run, rows| self.logits_of(run, &part(hidden, rows)?))
    }

    fn logits_of(&self, run: &Run<'_>, hidden: &DTensor) -> Result<DTensor, NnError> {
        let head = if self.body.config.head.tied { EMBEDDING } else { "lm_head.weight" };
        let last = self.body.stage.is_last().then(|| self.place(head)).flatten();
        let place = last.ok_or_else(|| self.wrong_stage("give logits"))?;
        if let Some(check) = hidden.nan_check() {
            check.enter_module(HEAD);
        }
        // An embedding that is tied is not replaced along with the embedding.
        let mut weight = self.body.plan.used_in(self.body.layouts[place], &self.parameters[place].1)?;
        if let Changes::Same(Some((adapter, strength))) = run.changes
            && let Some(new) = adapter.replacement("lm_head.weight")
        {
            weight = new.between(&weight, strength)?;
        }
        let bias = self.place("lm_head.bias").map(|place| run.parameter(place)).transpose()?;
        let mut logits = match run.low_rank(HEAD) {
            None => hidden.linear(&weight, bias.as_ref(), None)?,
            Some((low_rank, strength)) => {
                low_rank.applied(run, HEAD, hidden, [Some(&weight), bias.as_ref(), None], strength)?
            }
        };
        if let Some(cap) = self.body.config.head.soft_cap {
            logits = logits.scale(1.0 / cap)?.tanh()?.scale(cap)?;
        }
        Ok(logits)
    }

    /// The hidden states of some tokens, as rows: `(row, position)` each.
    pub fn rows_at(&self, hidden: &DTensor, places: &[(usize, usize)]) -> Result<DTensor, NnError> {
        let [batch, time, width] = [hidden.shape()[0], hidden.shape()[1], hidden.shape()[2]];
        let flat = hidden.reshape(&Shape::new(&[batch * time, width])?)?;
        if places.len() == batch * time
            && places.iter().enumerate().all(|(at, (row, place))| row * time + place == at)
        {
            return Ok(flat);
        }
        let chosen: Vec<i64> = places.iter().map(|(row, place)| (row * time + place) as i64).collect();
        let chosen = Tensor::from_slice(&chosen, &[places.len()])?;
        let replicated = Layout::replicated(self.body.plan.mesh());
        let chosen = DTensor::distribute(&self.body.dist, &chosen, replicated)?;
        Ok(flat.index_select(0, &chosen)?)
    }

    fn wrong_stage(&self, what: &'static str) -> NnError {
        self.body.wrong_stage(what)
    }
}

impl Body {
    /// Through one layer.
    fn through(
        &self,
        run: &Run<'_>,
        place: usize,
        x: DTensor,
        standing: &Standing,
        cache: Option<(&mut Cache, usize)>,
    ) -> Result<DTensor, NnError> {
        let (config, plan, layer) = (&self.config, &self.plan, &self.layers[place]);
        let number = self.stage.layers.start + place;
        if let Some(check) = x.nan_check() {
            check.enter_module(&format!("model.layers.{number}"));
        }
        let normed = |norm: &Option<Norm>, x: &DTensor| match norm {
            Some(norm) => norm.apply(run, &config.norm, x),
            None => Ok(x.clone()),
        };
        let work = |x: &DTensor, residual: Option<&DTensor>| match &layer.mlp {
            Work::Mlp(mlp) => mlp.apply(run, &config.mlp, x, residual),
            Work::Experts(experts) => {
                let options = config.experts(number);
                let options = options.ok_or_else(|| self.wrong_stage("use experts that it does not have"))?;
                let out = experts.apply(run, options, config.mlp.activation, x)?;
                residual.map_or_else(|| Ok(out.clone()), |residual| Ok(out.add(residual)?))
            }
        };
        // Where positions are shared, sums are made while they are shared out,
        // so that what was before is added behind.
        let shared = plan.usage().positions == Positions::Shared;
        let inside = |residual: &'_ DTensor| (!shared).then(|| residual.clone());
        let left = |out: DTensor, residual: &DTensor| -> Result<DTensor, NnError> {
            let out = plan.left(out)?;
            if shared { Ok(out.add(residual)?) } else { Ok(out) }
        };
        let input = plan.entered(normed(&layer.before_attention, &x)?)?;
        match config.residual {
            ResidualForm::Before => {
                let seen =
                    layer.attention.apply(run, number, &input, standing, cache, inside(&x).as_ref())?;
                let x = left(seen, &x)?;
                let input = plan.entered(normed(&layer.before_mlp, &x)?)?;
                left(work(&input, inside(&x).as_ref())?, &x)
            }
            ResidualForm::Parallel => {
                let seen =
                    layer.attention.apply(run, number, &input, standing, cache, inside(&x).as_ref())?;
                left(work(&input, Some(&seen))?, &x)
            }
            ResidualForm::After | ResidualForm::Around => {
                let seen = plan.left(layer.attention.apply(run, number, &input, standing, cache, None)?)?;
                let x = x.add(&normed(&layer.after_attention, &seen)?)?;
                let input = plan.entered(normed(&layer.before_mlp, &x)?)?;
                let out = plan.left(work(&input, None)?)?;
                Ok(x.add(&normed(&layer.after_mlp, &out)?)?)
            }
        }
    }

    fn wrong_stage(&self, what: &'static str) -> NnError {
        let Stage { layers, of } = &self.stage;
        NnError::WrongStage { start: layers.start, end: layers.end, of: *of, what }
    }
}
