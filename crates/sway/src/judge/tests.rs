//! Whole suites on the dummy backend.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use super::*;
use crate::backend::dummy::Dummy;

const SUITE: &str = "
models:
  base: {base: tiny}
  ft: {base: tiny, adapter: out}
suite:
  - {name: noise, kind: null_adapter}
  - {name: change, kind: delta_kl, prompts: [Once upon a time, The sky is, A cat]}
";

fn prepared() -> PreparedSuite {
    let suite = Suite::read(SUITE, Path::new("sway.yaml"), &|_| None).unwrap();
    PreparedSuite::new(suite, None).unwrap()
}

#[test]
fn a_report_says_what_was_judged_by_whom_and_when() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.jsonl");
    let options = JudgeOptions { trace: Some(trace.clone()), ..JudgeOptions::default() };
    let report = judge(&prepared(), &mut Dummy::default(), &options, &mut ()).unwrap();
    let names: Vec<&str> = report.probes.iter().map(|record| record.name.as_str()).collect();
    assert_eq!(names, ["noise", "change"]);
    assert_eq!(report.spec_path, "sway.yaml");
    assert_eq!(report.statistics, Statistics::Paired);
    assert_eq!(report.started_at.len(), "2026-01-02T03:04:05.678901+00:00".len());
    assert!(report.started_at <= report.finished_at && report.started_at.ends_with("+00:00"));
    let lines = std::fs::read_to_string(trace).unwrap();
    assert_eq!(lines.lines().count() as f64, report.backend_stats["cache_misses"].as_f64().unwrap());
}

#[test]
fn a_cancelled_run_asks_nothing_more() {
    struct CancelAfterOne(CancelFlag);
    impl Observer for CancelAfterOne {
        fn answered(&mut self, _done: usize, _of: usize) {
            self.0.cancel();
        }
    }
    let options = JudgeOptions::default();
    let mut backend = Dummy::default();
    let mut observer = CancelAfterOne(options.cancel.clone());
    let error = judge(&prepared(), &mut backend, &options, &mut observer).unwrap_err();
    assert_eq!(error, JudgeError::Run(RunError::Cancelled));
    assert_eq!(backend.answered, 1);
}

#[test]
fn wrong_options_are_reported() {
    let suite = || Suite::read(SUITE, Path::new("sway.yaml"), &|_| None).unwrap();
    let error = PreparedSuite::new(suite(), Some("adherance=1")).unwrap_err();
    assert!(matches!(error, PrepareError::Weights(_)) && error.hint().is_some());
    let options = JudgeOptions { only: vec!["chnge".to_owned()], ..JudgeOptions::default() };
    let error = judge(&prepared(), &mut Dummy::default(), &options, &mut ()).unwrap_err();
    assert!(matches!(error, JudgeError::Run(RunError::UnknownEntry { .. })) && error.hint().is_some());
    assert!(prepared().check_names(&options.only).is_err());
    let options =
        JudgeOptions { trace: Some(Path::new("/nowhere/trace").to_owned()), ..JudgeOptions::default() };
    let error = judge(&prepared(), &mut Dummy::default(), &options, &mut ()).unwrap_err();
    assert!(matches!(error, JudgeError::Trace(_)), "{error}");
}

#[test]
fn a_backend_that_fails_leaves_its_answers_in_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let options = JudgeOptions { cache: Some(folder.path().to_owned()), ..JudgeOptions::default() };
    let mut backend = Dummy::default().with_identity("dummy");
    backend.fail_after = Some(2);
    let error = judge(&prepared(), &mut backend, &options, &mut ()).unwrap_err();
    assert!(matches!(error, JudgeError::Backend { cached: 2, .. }), "{error:?}");
    assert!(error.hint().unwrap().contains("2 new answers are cached"));
}
