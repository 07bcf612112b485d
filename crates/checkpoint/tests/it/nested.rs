//! Nested state comes back as the tree that it was.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use weightloom_checkpoint::plan::{LoadState, Slot};
use weightloom_checkpoint::{
    Bytes, CheckpointError, ConvertOptions, Leaf, LeafValue, LoadOptions, LocalTensor, MemoryStorage,
    ModelPart, PathSegment, ReadOptions, SaveFormat, SaveOptions, Saver, Section, Sharding, Source, State,
    Storage, Target, TensorSpec, Tree, convert, fingerprint, flatten, load,
};
use weightloom_gang::{Gang, GangOptions, solo, threads};
use weightloom_layout::{DType, Region, Shape};

fn spec(length: usize) -> TensorSpec {
    let shape = Shape::new(&[length]).unwrap();
    TensorSpec { dtype: DType::F32, sharding: Sharding::Region(Region::whole(&shape)), shape }
}

fn tensor(values: &[f32]) -> Tree<Leaf<'static>> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let tensor = LocalTensor { spec: spec(values.len()), bytes: bytes.into() };
    Tree::Leaf(Leaf { section: Section::Model, value: LeafValue::Tensor(tensor) })
}

fn value(json: &str) -> Tree<Leaf<'static>> {
    let bytes = Bytes::Owned(json.as_bytes().to_vec());
    Tree::Leaf(Leaf { section: Section::Training, value: LeafValue::Bytes(bytes) })
}

fn map<const N: usize>(children: [(&str, Tree<Leaf<'static>>); N]) -> Tree<Leaf<'static>> {
    Tree::Map(children.into_iter().map(|(name, child)| (name.to_owned(), child)).collect())
}

/// A tree as text, to compare.
fn show(tree: &Tree<Leaf<'_>>) -> String {
    match tree {
        Tree::Leaf(Leaf { section, value }) => match value {
            LeafValue::Bytes(bytes) => format!("{section:?} {:?}", bytes.to_host().unwrap()),
            LeafValue::Tensor(tensor) => {
                format!("{section:?} {} {:?}", tensor.spec.shape, tensor.bytes.to_host().unwrap())
            }
        },
        Tree::List(children) => format!("[{}]", children.iter().map(show).collect::<Vec<_>>().join(", ")),
        Tree::Map(children) => {
            let children = children.iter().map(|(name, child)| format!("{name:?}: {}", show(child)));
            format!("{{{}}}", children.collect::<Vec<_>>().join(", "))
        }
    }
}

fn save(trees: &[Tree<Leaf<'static>>], format: SaveFormat) -> Result<Source, CheckpointError> {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    let saved = threads::run(trees.len(), GangOptions::default(), |gang: Arc<dyn Gang>| {
        let (state, paths) = flatten(trees[gang.rank()].clone())?;
        let options = SaveOptions { format, paths, ..SaveOptions::default() };
        Saver::new(gang)?.save(&state, &target, &options, &()).map(drop)
    });
    saved.unwrap().into_iter().collect::<Result<Vec<()>, CheckpointError>>()?;
    Source::open_folder(storage)
}

fn training_state() -> Tree<Leaf<'static>> {
    map([
        ("model", map([("layers.0.weight", tensor(&[1.0, 2.0])), ("bias", tensor(&[3.0]))])),
        (
            "optimizer",
            map([
                (
                    "state",
                    Tree::List(vec![map([("exp_avg", tensor(&[4.0])), ("step", value("7"))]), map([])]),
                ),
                (
                    "param_groups",
                    Tree::List(vec![map([("lr", value("0.001")), ("params", Tree::List(Vec::new()))])]),
                ),
            ]),
        ),
        ("0", map([("1", value("null"))])),
    ])
}

#[test]
fn a_training_state_comes_back_as_a_tree_from_every_format() {
    for format in [SaveFormat::Native, SaveFormat::Dcp] {
        let source = save(&[training_state()], format).unwrap();
        let tree = source.read_tree(&ReadOptions::default(), &()).unwrap();
        assert_eq!(show(&tree), show(&training_state()), "{format:?}");
    }
}

#[test]
fn ranks_that_know_parts_of_a_tree_save_all_of_it() {
    let stage =
        |name: &str, element: f32| map([("stages", map([(name, map([("a.b", tensor(&[element]))]))]))]);
    for format in [SaveFormat::Native, SaveFormat::Dcp] {
        let source = save(&[stage("0", 1.0), stage("1", 2.0)], format).unwrap();
        let tree = source.read_tree(&ReadOptions::default(), &()).unwrap();
        let both = map([("0", map([("a.b", tensor(&[1.0]))])), ("1", map([("a.b", tensor(&[2.0]))]))]);
        assert_eq!(show(&tree), show(&map([("stages", both)])), "{format:?}");
    }
}

#[test]
fn ranks_with_two_paths_for_one_name_save_nothing() {
    let error =
        save(&[map([("a.b", value("1"))]), map([("a", map([("b", value("1"))]))])], SaveFormat::Native);
    let Err(CheckpointError::AmbiguousPath(error)) = error else { panic!("it was saved") };
    assert_eq!(error.name, "a.b");
}

#[test]
fn a_conversion_keeps_the_tree() {
    for (from, to) in [(SaveFormat::Native, SaveFormat::Dcp), (SaveFormat::Dcp, SaveFormat::Native)] {
        let source = save(&[training_state()], from).unwrap();
        let storage = Arc::new(MemoryStorage::default());
        let save = SaveOptions { format: to, ..SaveOptions::default() };
        let options = ConvertOptions { save, ..ConvertOptions::default() };
        convert(&source, &Target::Objects(Arc::clone(&storage) as _), &options, &()).unwrap();
        let converted = Source::open_folder(storage).unwrap();
        let tree = converted.read_tree(&ReadOptions::default(), &()).unwrap();
        assert_eq!(show(&tree), show(&training_state()), "{from:?} to {to:?}");
    }
}

/// A state as the Python module names it: the model's tensors as transformers knows them.
#[test]
fn torch_finds_a_nested_model_in_dcp_which_keeps_its_names() {
    let storage = Arc::new(MemoryStorage::default());
    let target = Target::Objects(Arc::clone(&storage) as _);
    let names = ["lm_head.weight", "model.norm.weight", "optimizer.step"];
    let key = |key: &str| PathSegment::Key(key.to_owned());
    let mut state = State::new();
    for (name, element) in names.into_iter().zip([1.0f32, 2.0, 3.0]) {
        let bytes = Bytes::Owned(element.to_le_bytes().to_vec());
        let section = if name == names[2] { Section::Training } else { Section::Model };
        let value = LeafValue::Tensor(LocalTensor { spec: spec(1), bytes });
        state.insert(name, Leaf { section, value });
    }
    state.value("epoch", &3).unwrap();
    let paths = BTreeMap::from([
        (names[0].to_owned(), vec![key("model"), key(names[0])]),
        (names[1].to_owned(), vec![key("model"), key(names[1])]),
        (names[2].to_owned(), vec![key("optimizer"), key("step")]),
    ]);
    let options = SaveOptions { format: SaveFormat::Dcp, paths, ..SaveOptions::default() };
    let report =
        Saver::new(solo(GangOptions::default())).unwrap().save(&state, &target, &options, &()).unwrap();
    let metadata = storage.read_all(".metadata", 1 << 20).unwrap();
    let has = |text: &str| metadata.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(has("model.lm_head.weight") && has("model.model.norm.weight"));
    assert!(!has("model.optimizer.step") && !has("model.epoch"));
    let source = Source::open_folder(storage).unwrap();
    assert_eq!(source.index.tensors().keys().collect::<Vec<_>>(), names);
    assert_eq!(fingerprint(&source, &()).unwrap().fingerprint, report.fingerprint);
    let part = ModelPart::find(&source).unwrap();
    assert_eq!(part.source.index.tensors().keys().collect::<Vec<_>>(), names[..2].iter().collect::<Vec<_>>());
    assert_eq!(part.left_out, ["optimizer.step", "epoch"]);
}

#[test]
fn nested_slots_are_loaded_in_place() {
    let source = save(&[training_state()], SaveFormat::Native).unwrap();
    let (mut weight, mut step) = ([0; 8], Vec::new());
    let wanted = Tree::Map(BTreeMap::from([
        (
            "model".to_owned(),
            Tree::Map(BTreeMap::from([(
                "layers.0.weight".to_owned(),
                Tree::Leaf(Slot::Tensor { spec: spec(2), into: &mut weight }),
            )])),
        ),
        (
            "optimizer".to_owned(),
            Tree::Map(BTreeMap::from([(
                "state".to_owned(),
                Tree::List(vec![Tree::Map(BTreeMap::from([(
                    "step".to_owned(),
                    Tree::Leaf(Slot::Bytes(&mut step)),
                )]))]),
            )])),
        ),
    ]));
    let mut state = LoadState::new();
    state.tree(wanted).unwrap();
    let options = LoadOptions {
        unexpected: weightloom_checkpoint::plan::UnexpectedKeys::Ignore,
        ..LoadOptions::default()
    };
    load(&source, state, &*solo(GangOptions::default()), &options, &()).unwrap();
    assert_eq!(weight[..4], 1.0f32.to_le_bytes());
    assert_eq!(step, b"7");
}

#[test]
fn paths_that_lead_to_one_place_or_too_deep_are_errors() {
    let source =
        save(&[map([("a", value("1")), ("b", map([("c", value("2"))]))])], SaveFormat::Native).unwrap();
    let with_path = |name: &str, path: Vec<PathSegment>| {
        let mut manifest = (**source.manifest.as_ref().unwrap()).clone();
        manifest.paths.insert(name.to_owned(), path);
        let changed = Source { manifest: Some(Arc::new(manifest)), ..source.clone() };
        changed.read_tree(&ReadOptions::default(), &()).map(|tree| show(&tree))
    };
    let key = |key: &str| PathSegment::Key(key.to_owned());
    assert!(with_path("b.c", vec![key("x"), key("y")]).is_ok());
    for path in [vec![key("a")], vec![key("a"), key("c")], vec![], vec![key("x"); 100_000]] {
        let error = with_path("b.c", path).unwrap_err();
        assert!(matches!(error, CheckpointError::Path { .. }), "{error}");
    }
}

fn trees() -> impl Strategy<Value = Tree<Leaf<'static>>> {
    let leaf = prop_oneof![
        any::<u8>().prop_map(|number| value(&number.to_string())),
        proptest::collection::vec(any::<u8>(), 0..3)
            .prop_map(|values| { tensor(&values.into_iter().map(f32::from).collect::<Vec<f32>>()) }),
    ];
    let node = leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::btree_map("[ab01]{1,2}(\\.[ab])?", inner.clone(), 0..4).prop_map(Tree::Map),
            proptest::collection::vec(inner, 0..4).prop_map(Tree::List),
        ]
    });
    proptest::collection::btree_map("[a-c]", node, 1..4).prop_map(Tree::Map)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_tree_comes_back(tree in trees()) {
        for format in [SaveFormat::Native, SaveFormat::Dcp] {
            let source = match save(std::slice::from_ref(&tree), format) {
                // Two ways to one name.
                Err(CheckpointError::AmbiguousPath(_)) => return Ok(()),
                saved => saved.unwrap(),
            };
            let found = source.read_tree(&ReadOptions::default(), &()).unwrap();
            prop_assert_eq!(show(&found), show(&tree), "{:?}", format);
        }
    }
}
