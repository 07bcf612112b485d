//! A model that implements nothing but what it must computes the same as our decoder.

use weightloom_dtensor::DTensor;
use weightloom_layout::Shape;
use weightloom_nn::{
    AdapterRows, AsModel, BatchAdapters, Decoder, ForwardArgs, GenerateRequest, Generation, Initial, Input,
    Model, ModelDefinition, ModelShard, NnError, ParameterSpec, Sequence, Stage,
};

use crate::adapters::lora;
use crate::tiny::{bits, decoder, logits, to_vec};

/// Our decoder without its faster ways.
#[derive(Debug)]
struct Plain(Decoder);

impl Model for Plain {
    fn definition(&self) -> &dyn ModelDefinition {
        self.0.config()
    }

    fn shard(&self) -> &ModelShard {
        self.0.shard()
    }

    fn shard_mut(&mut self) -> &mut ModelShard {
        self.0.shard_mut()
    }

    fn forward(&self, input: Input, args: ForwardArgs<'_>) -> Result<DTensor, NnError> {
        self.0.forward(input, args)
    }

    fn logits(&self, hidden: &DTensor, adapters: BatchAdapters<'_>) -> Result<DTensor, NnError> {
        self.0.logits(hidden, adapters)
    }
}

const ROWS: [&[u32]; 3] = [&[3, 1, 4, 1, 5], &[3, 1, 4, 9], &[2]];

#[test]
fn it_generates_the_same_tokens() {
    let (ours, own) = (decoder(), Plain(decoder()));
    let prompts: Vec<Vec<u32>> = ROWS.iter().map(|row| row.to_vec()).collect();
    // A stop token, so that rows end at different times.
    let request = GenerateRequest { prompts, max_new_tokens: 9, stop_tokens: vec![7], ..Default::default() };
    let run = |model: &dyn Model| Generation::new(model, None, request.clone()).unwrap().run().unwrap();
    assert_eq!(run(&own), run(&ours));
}

#[test]
fn it_scores_the_same() {
    let (ours, own) = (decoder(), Plain(decoder()));
    let scores = own.as_model().score(&ROWS, 3, None).unwrap();
    assert_eq!(scores, ours.as_model().score(&ROWS, 3, None).unwrap());
    let error = own.as_model().score(&[&[]], 0, None).unwrap_err();
    assert_eq!(error, NnError::EmptyPrompt { row: 0 });
}

#[test]
fn it_runs_sequences_the_same() {
    let (ours, own) = (decoder(), Plain(decoder()));
    let sequences: Vec<Sequence<'_>> = ROWS.iter().map(|tokens| Sequence { tokens, adapter: 0 }).collect();
    let (ours, own) = (
        ours.forward_sequences(&sequences, &[None]).unwrap(),
        own.forward_sequences(&sequences, &[None]).unwrap(),
    );
    let positions = [(0, 4), (1, 0), (1, 3), (0, 2), (2, 0)];
    let logits = |output: &dyn weightloom_nn::SequenceOutput| to_vec(&output.logits(&positions).unwrap());
    assert_eq!(bits(&logits(&*own)), bits(&logits(&*ours)));
    let means = |output: &dyn weightloom_nn::SequenceOutput| to_vec(&output.mean_hidden(&[2, 0]).unwrap());
    for (own, ours) in means(&*own).iter().zip(means(&*ours)) {
        assert!((own - ours).abs() < 1e-6, "{own} {ours}");
    }
    assert!(own.logits(&[(2, 1)]).is_err() && own.logits(&[(3, 0)]).is_err());
    assert_eq!(own.logits(&[]).unwrap().shape()[..], [0, 29]);
}

#[test]
fn an_adapter_is_merged_into_the_parameters_that_it_names() {
    let (ours, own) = (decoder(), Plain(decoder()));
    let merged = |model: &dyn Model, decoder: &Decoder| {
        let adapter = lora(decoder, 1);
        logits(&*model.merged(&adapter, 0.5).unwrap(), &[ROWS[0]], None)
    };
    assert_eq!(bits(&merged(&own, &own.0)), bits(&merged(&ours, &ours)));
    assert_ne!(bits(&merged(&own, &own.0)), bits(&logits(&ours, &[ROWS[0]], None)));
}

#[test]
fn a_model_without_adapters_refuses_them_by_name() {
    let adapter = lora(&decoder(), 1);
    let refuse = |adapters: BatchAdapters<'_>| adapters.check_none("own");
    assert_eq!(refuse(BatchAdapters::default()), Ok(()));
    let error = NnError::NoAdapters { model: "own".to_owned() };
    assert_eq!(refuse(Some((&adapter, 1.0)).into()), Err(error.clone()));
    let groups =
        [AdapterRows { rows: 1, adapter: None }, AdapterRows { rows: 1, adapter: Some((&adapter, 1.0)) }];
    assert_eq!(refuse((&groups[..]).into()), Err(error));
    assert_eq!(refuse((&groups[..1]).into()), Ok(()));
}

#[test]
fn its_loss_is_the_cross_entropy() {
    let (ours, own) = (decoder(), Plain(decoder()));
    let loss = |model: &dyn Model| {
        let rows = model.shard().batch(&[3, 1, 4, 1, 5, 9], 2).unwrap();
        let targets = model.shard().batch(&[1, 4, -100, 5, 9, 2], 2).unwrap();
        let hidden = model.forward(Input::Tokens(rows), ForwardArgs::default()).unwrap();
        to_vec(&model.loss(&hidden, &targets, 5.0, None).unwrap())[0]
    };
    // The fused kernel adds in another order.
    assert!((loss(&own) - loss(&ours)).abs() < 1e-5);
    assert_eq!(bits(&logits(&own, &[ROWS[0]], None)), bits(&logits(&ours, &[ROWS[0]], None)));
}

/// Parameters of a model that lies about its stages.
#[derive(Debug)]
struct Lying(fn(&Stage) -> Vec<(&'static str, usize)>);

impl ModelDefinition for Lying {
    fn name(&self) -> &str {
        "lying"
    }

    fn vocabulary(&self) -> usize {
        2
    }

    fn layers(&self) -> usize {
        2
    }

    fn hidden(&self) -> usize {
        2
    }

    fn parameters(&self, stage: &Stage) -> Vec<ParameterSpec> {
        let spec = |(name, size): (&str, usize)| {
            ParameterSpec::new(name, Shape::new(&[size]).unwrap(), Initial::Zeros)
        };
        (self.0)(stage).into_iter().map(spec).collect()
    }

    fn tied_parameter(&self) -> Option<&str> {
        Some("tied")
    }

    fn build(&self, _: ModelShard) -> Result<Box<dyn Model>, NnError> {
        unreachable!("it is refused before")
    }
}

#[test]
fn parameters_that_do_not_tile_are_refused_by_name() {
    let two = [Stage::one_of(2, 0, 2).unwrap(), Stage::one_of(2, 1, 2).unwrap()];
    let check = |parameters| {
        let definition: &dyn ModelDefinition = &Lying(parameters);
        definition.check_stages(&two).map_err(|error| error.to_string())
    };
    let says = |text: &str| Err(format!("the parameters of `lying` do not fit together: `a` is {text}"));
    assert_eq!(
        check(|stage| if stage.is_first() { vec![("a", 1), ("tied", 1)] } else { vec![("tied", 1)] }),
        Ok(())
    );
    assert_eq!(check(|_| vec![("a", 1)]), says("in two stages, and not tied"));
    assert_eq!(check(|_| vec![("a", 1), ("a", 1)]), says("listed twice"));
    assert_eq!(
        check(|stage| if stage.layers.len() == 2 { vec![("a", 1)] } else { vec![] }),
        says("in no stage")
    );
    let later = |stage: &Stage| if stage.layers.len() == 2 { vec![] } else { vec![("a", 1)] };
    assert_eq!(check(later), says("in a stage, but not in the whole model"));
    assert_eq!(check(|stage| vec![("a", stage.layers.len())]), says("of another shape in a stage"));
}
