//! The machine against pickles that are meant well, damaged, or meant to harm.

use serde_json::json;

use super::*;

fn json_of(input: &[u8]) -> Result<serde_json::Value, PickleError> {
    let pickle = Pickle::read(input)?;
    pickle.json("root", pickle.root(), &mut pickle.budget())
}

#[test]
fn plain_values_of_new_and_old_protocols() {
    // pickle.dumps([1, -1, 2**40, 2**63, 2.5, "é", None, True, (1, 2), {"a": b"\xff"}], protocol=5)
    let new = b"\x80\x05\x95I\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01J\xff\xff\xff\xff\x8a\x06\x00\x00\x00\x00\x00\
        \x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00G@\x04\x00\x00\x00\x00\x00\x00\x8c\x02\xc3\xa9\x94N\x88K\
        \x01K\x02\x86\x94}\x94\x8c\x01a\x94C\x01\xff\x94se.";
    let expected = json!([1, -1, 1u64 << 40, 1u64 << 63, 2.5, "é", null, true, [1, 2], {"a": [255]}]);
    assert_eq!(json_of(new).unwrap(), expected);
    // The last item of the same list by protocol 2.
    let old =
        b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01c_codecs\nencode\nq\x02X\x02\x00\x00\x00\xc3\xbfq\x03X\x06\
        \x00\x00\x00latin1q\x04\x86q\x05Rq\x06s.";
    assert_eq!(json_of(old).unwrap(), json!({"a": [255]}));
}

#[test]
fn what_is_written_reads_back() {
    let value = json!({
        "numbers": [0, 255, 256, -1, i64::MAX, i64::MIN, u64::MAX, 1.5, -0.0],
        "nothing": null, "truth": [true, false], "text": "naïve", "same": ["text", "text"], "empty": [[], {}],
    });
    let mut writer = PickleWriter::new();
    writer.json(&value);
    assert_eq!(json_of(&writer.finish()).unwrap(), value);
}

#[test]
fn globals_that_could_run_code_are_refused_by_name() {
    let refused = |input: &[u8], module: &str, name: &str| {
        let expected = PickleError::Global { module: module.to_owned(), name: name.to_owned() };
        assert_eq!(json_of(input), Err(expected));
    };
    refused(b"cos\nsystem\n(S'true'\ntR.", "os", "system");
    refused(b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.", "posix", "system");
    refused(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93\x8c\x011\x85R.", "builtins", "eval");
    refused(b"\x80\x02c__builtin__\ngetattr\n.", "__builtin__", "getattr");
    refused(b"\x80\x02ctorch.serialization\nload\n.", "torch.serialization", "load");
    refused(b"\x80\x02ctorch._utils\n_import_dotted_name\n.", "torch._utils", "_import_dotted_name");
    // A dotted name reaches attributes of what is allowed.
    refused(b"\x80\x04\x8c\x05torch\x8c\x0bSize.__init\x93.", "torch", "Size.__init");
    let error = json_of(b"cos\nsystem\n.").unwrap_err();
    assert_eq!(error.to_string(), "the pickle uses `os.system`, which is not allowed");
    assert!(error.hint().unwrap().contains("never"));
}

#[test]
fn instructions_that_build_classes_in_other_ways_are_unknown() {
    for input in [&b"(ios\nsystem\n."[..], b"(cos\nsystem\no.", b"\x82\x01.", b"I1\n.", b"\x92."] {
        assert!(
            matches!(json_of(input), Err(PickleError::Instruction { .. } | PickleError::Global { .. })),
            "{input:?}"
        );
    }
}

#[test]
fn recorded_calls_are_not_plain_values() {
    let call = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.";
    assert!(matches!(json_of(call), Err(PickleError::Unexpected { .. })));
    // What a call is made of must be a name and a tuple.
    assert!(matches!(json_of(b"\x80\x02ctorch\nSize\nK\x01R."), Err(PickleError::Operands { .. })));
    assert!(matches!(json_of(b"\x80\x02K\x01)R."), Err(PickleError::Operands { .. })));
}

#[test]
fn shared_parts_do_not_multiply() {
    // Each list holds the one before it ten times: 10^60 leaves in 2 KB.
    // A mark below them takes all but the last off the stack.
    let mut bomb = b"\x80\x02(]q\x00K\x01a".to_vec();
    for level in 0..60u8 {
        bomb.extend([b']', b'q', level + 1, b'(']);
        for _ in 0..10 {
            bomb.extend([b'h', level]);
        }
        bomb.push(b'e');
    }
    bomb.extend(b"1h\x3c.");
    assert_eq!(json_of(&bomb), Err(PickleError::Shared));
}

#[test]
fn deep_values_and_values_in_themselves_are_refused() {
    let mut deep = b"\x80\x02".to_vec();
    deep.extend([b']'; 100_000]);
    deep.extend([b'a'; 99_999]);
    deep.push(b'.');
    assert_eq!(json_of(&deep), Err(PickleError::Deep { limit: MAX_DEPTH }));
    assert_eq!(json_of(b"\x80\x02]q\x00h\x00a."), Err(PickleError::Deep { limit: MAX_DEPTH }));
    let mut nested = b"\x80\x02c__builtin__\nset\nq\x000".to_vec();
    nested.extend(b"h\x00".repeat(50_000));
    nested.push(b')');
    nested.extend(b"R\x85".repeat(49_999));
    nested.extend(b"R.");
    assert_eq!(json_of(&nested), Err(PickleError::Deep { limit: MAX_DEPTH }));
}

#[test]
fn lengths_and_numbers_from_the_input_allocate_nothing() {
    assert_eq!(json_of(b"\x80\x02X\xff\xff\xff\xff."), Err(PickleError::Truncated { at: 8 }));
    assert_eq!(
        json_of(b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff."),
        Err(PickleError::Truncated { at: 12 })
    );
    assert_eq!(json_of(b"\x80\x02Nr\xff\xff\xff\xff."), Err(PickleError::Memo { index: u32::MAX }));
    assert_eq!(json_of(b"\x80\x02h\x05."), Err(PickleError::Memo { index: 5 }));
    assert_eq!(json_of(b"\x80\x09N."), Err(PickleError::Protocol { version: 9 }));
}

#[test]
fn cut_off_or_changed_pickles_do_not_panic() {
    let mut writer = PickleWriter::new();
    writer.json(&json!({"a": [1, 2.5, "text", null], "b": {"c": 1u64 << 50}}));
    let whole = writer.finish();
    for length in 0..whole.len() {
        assert!(json_of(&whole[..length]).is_err(), "{length}");
    }
    for at in 0..whole.len() {
        for byte in 0..=255 {
            let mut changed = whole.clone();
            changed[at] = byte;
            let _ = json_of(&changed);
        }
    }
}
