//! The run files that users are shown are right.

use std::path::Path;

use weightloom_train::config::{dump, read, read_file};

#[test]
fn every_example_is_read_and_means_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/train");
    let mut found = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let config = read_file(&file, &[], &|_| None).unwrap_or_else(|errors| panic!("{errors}"));
        assert_eq!(read(&dump(&config), "a dump", &[], &|_| None).unwrap(), config, "{}", file.display());
        found += 1;
    }
    assert_eq!(found, 4);
}
