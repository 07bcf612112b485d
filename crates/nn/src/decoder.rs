//! The decoder: its parameters, and the way through them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use shardloom_dtensor::{DTensor, Ranks, Release, Settling, recompute};
use shardloom_layout::{DType, Layout, Shape, nearest};
use shardloom_tensor::{Device, Tensor};

use crate::adapter::{Adapter, LowRank};
use crate::attention::{Attention, Standing};
use crate::cache::Cache;
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
    ranks: Arc<Ranks>,
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

/// How a stage is gone through.
#[derive(Debug, Default)]
pub struct Pass<'a> {
    /// What was read before, to which this is added.
    pub cache: Option<&'a mut Cache>,
    /// How many tokens of each row count; all of them if not given.
    pub lengths: Option<&'a [usize]>,
    /// A change, and how much of it: 0 is none, 1 is all.
    pub adapter: Option<(&'a Adapter, f64)>,
    /// What the tape keeps of a layer.
    pub kept: Kept,
    /// What an adapter does not see.
    pub dropout: Option<Dropout>,
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

/// One way through the decoder, with its adapter.
pub(crate) struct Run<'a> {
    body: &'a Body,
    /// Parameters, beginning with one.
    parameters: &'a [(String, DTensor)],
    first: usize,
    adapter: Option<(&'a Adapter, f64)>,
    dropout: Option<Dropout>,
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

    /// A parameter as it is used.
    pub(crate) fn parameter(&self, place: usize) -> Result<DTensor, NnError> {
        let (name, value) = &self.parameters[place - self.first];
        let value = self.body.plan.used_in(self.body.layouts[place], value)?;
        match self.adapter.and_then(|(adapter, strength)| Some((adapter.replacement(name)?, strength))) {
            None => Ok(value),
            Some((new, strength)) => new.between(&value, strength),
        }
    }

    /// What the adapter adds to a module.
    pub(crate) fn low_rank(&self, module: &str) -> Option<(&'a LowRank, f64)> {
        self.adapter.and_then(|(adapter, strength)| Some((adapter.low_rank(module)?, strength)))
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
        ranks: Arc<Ranks>,
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
        let body = Arc::new(Body { layers, last_norm, rope, config, stage, plan, ranks, layouts });
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
    pub fn ranks(&self) -> &Arc<Ranks> {
        &self.body.ranks
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

    fn run<'a>(&'a self, adapter: Option<(&'a Adapter, f64)>) -> Run<'a> {
        Run { body: &self.body, parameters: &self.parameters, first: 0, adapter, dropout: None }
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
        Ok(DTensor::distribute(&self.body.ranks, &tokens, Layout::replicated(self.body.plan.mesh()))?)
    }

    /// Through all layers of the stage. Of the last stage, the result is ready
    /// for [`logits`](Self::logits): its norm is done.
    pub fn hidden(&self, input: Input, pass: Pass<'_>) -> Result<DTensor, NnError> {
        let Pass { mut cache, lengths, adapter, kept, dropout } = pass;
        let body = &self.body;
        let run = Run { dropout, ..self.run(adapter) };
        let given = match &input {
            Input::Tokens(tokens) => tokens,
            Input::Hidden(hidden) => hidden,
        };
        let [batch, time] = [given.shape()[0], given.shape()[1]];
        if let Some(found) = cache.as_ref().map(|cache| cache.lengths().len()).filter(|rows| *rows != batch) {
            return Err(NnError::CacheRows { found, asked: batch });
        }
        let starts = cache.as_ref().map_or_else(|| vec![0; batch], |cache| cache.lengths().to_vec());
        self.check_length(&starts, lengths, time)?;
        let (layout, device) = (given.layout(), given.device());
        let standing =
            Arc::new(Standing::new(&body.ranks, layout, body.rope.as_ref(), [batch, time], starts, device)?);
        if body.plan.usage().ahead > 0 {
            self.fetch(0..body.plan.usage().ahead)?;
        }
        let mut x = match input {
            Input::Tokens(tokens) => body.plan.left(self.embedded(&run, &tokens, &standing)?)?,
            Input::Hidden(hidden) => hidden,
        };
        for place in 0..body.layers.len() {
            x = self.watched_below(place, x, adapter)?;
            let ahead = place + body.plan.usage().ahead;
            if ahead > place {
                self.fetch(ahead..ahead + 1)?;
            }
            x = match (&mut cache, kept) {
                (None, Kept::Input) => self.again(place, x, &standing, adapter, dropout)?,
                (cache, _) => {
                    let cache = cache.as_deref_mut().map(|cache| (cache, place));
                    body.through(&run, place, x, &standing, cache)?
                }
            };
            x = self.watched_above(place, x)?;
        }
        if let Some(cache) = cache {
            match lengths {
                Some(lengths) => cache.advance(lengths.iter().copied()),
                None => cache.advance(std::iter::repeat_n(time, batch)),
            }
        }
        match &body.last_norm {
            Some(norm) => body.plan.entered(norm.apply(&run, &body.config.norm, &x)?),
            None => Ok(x),
        }
    }

    /// A layer of which only the input is kept.
    fn again(
        &self,
        place: usize,
        x: DTensor,
        standing: &Arc<Standing>,
        adapter: Option<(&Adapter, f64)>,
        dropout: Option<Dropout>,
    ) -> Result<DTensor, NnError> {
        let (body, standing) = (Arc::clone(&self.body), Arc::clone(standing));
        let places = body.layers[place].places.clone();
        let parameters = self.parameters[places.clone()].to_vec();
        let number = body.stage.layers.start + place;
        let adapter =
            adapter.map(|(adapter, strength)| (adapter.below(&format!("model.layers.{number}.")), strength));
        let trained: Vec<DTensor> = parameters
            .iter()
            .map(|(_, value)| value)
            .chain(adapter.iter().flat_map(|(adapter, _)| adapter.values()))
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        let made = recompute(&[x], &trained, move |x| {
            let adapter = adapter.as_ref().map(|(adapter, strength)| (adapter, *strength));
            let run = Run { body: &body, parameters: &parameters, first: places.start, adapter, dropout };
            let x = body.through(&run, place, x[0].clone(), &standing, None);
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
        let x = if self.body.ranks.looks_at_numbers() && x.tracks_gradient() {
            let (ranks, number) = (Arc::clone(&self.body.ranks), self.body.stage.layers.start + place);
            x.on_way_back(move || {
                ranks.set_place(&format!("model.layers.{number}"));
                Ok(())
            })?
        } else {
            x
        };
        if usage.ahead == 0 || usage.release == Release::Keep || !x.tracks_gradient() {
            return Ok(x);
        }
        let Some(before) = place.checked_sub(usage.ahead) else { return Ok(x) };
        let (body, places) = (Arc::clone(&self.body), self.body.layers[before].places.clone());
        let values: Vec<DTensor> =
            self.parameters[places.clone()].iter().map(|(_, value)| value.clone()).collect();
        Ok(x.on_way_back(move || {
            let mut all = values.iter().zip(&body.layouts[places.clone()]);
            all.try_for_each(|(value, layout)| body.plan.ahead(*layout, value))
        })?)
    }

    /// What goes into a layer. When its gradient comes, those of the layer's
    /// parameters are whole, and can be summed over ranks while the pass goes
    /// on, if this is the last one.
    fn watched_below(
        &self,
        place: usize,
        x: DTensor,
        adapter: Option<(&Adapter, f64)>,
    ) -> Result<DTensor, NnError> {
        if !self.body.ranks.overlaps() || !x.tracks_gradient() {
            return Ok(x);
        }
        let number = self.body.stage.layers.start + place;
        let adapter = adapter.map(|(adapter, _)| adapter.below(&format!("model.layers.{number}.")));
        let values: Vec<DTensor> = self.parameters[self.body.layers[place].places.clone()]
            .iter()
            .map(|(_, value)| value)
            .chain(adapter.iter().flat_map(Adapter::values))
            .filter(|value| value.tracks_gradient())
            .cloned()
            .collect();
        let ranks = Arc::clone(&self.body.ranks);
        Ok(x.on_way_back(move || match ranks.settles() {
            Settling::Early => values.iter().try_for_each(DTensor::settle),
            Settling::Late => Ok(()),
        })?)
    }

    /// Learned positions end; turned ones go on, but not beyond what can be
    /// told apart.
    fn check_length(&self, starts: &[usize], lengths: Option<&[usize]>, time: usize) -> Result<(), NnError> {
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
        self.body.ranks.set_place(EMBEDDING);
        let mut x = run.parameter(place)?.embedding(tokens)?;
        if let Some((low_rank, strength)) = run.low_rank(EMBEDDING.trim_end_matches(".weight")) {
            x = low_rank.changed_embedding(&x, tokens, strength)?;
        }
        x = settled(x)?;
        if let Some(scale) = self.body.config.embedding_scale {
            x = x.scale(scale)?;
        }
        if let Some(place) = self.place(POSITIONS) {
            let time = tokens.shape()[1];
            let last = self.body.config.max_positions as i64 - 1;
            // What fills up shorter rows may stand behind the last position.
            let positions: Vec<i64> = standing
                .starts
                .iter()
                .flat_map(|&start| (start..start + time).map(|position| (position as i64).min(last)))
                .collect();
            let positions = match tokens.device() {
                Device::Meta => Tensor::zeros(DType::I64, tokens.shape(), Device::Meta)?,
                _ => Tensor::from_slice(&positions, tokens.shape())?,
            };
            let replicated = Layout::replicated(self.body.plan.mesh());
            let positions = DTensor::distribute(&self.body.ranks, &positions, replicated)?;
            x = x.add(&settled(run.parameter(place)?.embedding(&positions)?)?)?;
        }
        Ok(x)
    }

    /// Logits, `[…, vocabulary]`, of what [`hidden`](Self::hidden) gave, or of
    /// some of its rows.
    pub fn logits(&self, hidden: &DTensor, adapter: Option<(&Adapter, f64)>) -> Result<DTensor, NnError> {
        let run = self.run(adapter);
        let head = if self.body.config.head.tied { EMBEDDING } else { "lm_head.weight" };
        let last = self.body.stage.is_last().then(|| self.place(head)).flatten();
        let place = last.ok_or_else(|| self.wrong_stage("give logits"))?;
        self.body.ranks.set_place(HEAD);
        // An embedding that is tied is not replaced along with the embedding.
        let own =
            adapter.and_then(|(adapter, strength)| Some((adapter.replacement("lm_head.weight")?, strength)));
        let mut weight = self.body.plan.used_in(self.body.layouts[place], &self.parameters[place].1)?;
        if let Some((new, strength)) = own {
            weight = new.between(&weight, strength)?;
        }
        let bias = self.place("lm_head.bias").map(|place| run.parameter(place)).transpose()?;
        let mut logits = match run.low_rank(HEAD) {
            None => hidden.linear(&weight, bias.as_ref(), None)?,
            Some((low_rank, strength)) => {
                low_rank.applied(&run, HEAD, hidden, [Some(&weight), bias.as_ref(), None], strength)?
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
        let chosen = DTensor::distribute(&self.body.ranks, &chosen, replicated)?;
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
        if self.ranks.looks_at_numbers() {
            self.ranks.set_place(&format!("model.layers.{number}"));
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
