//! A killed download resumes.
//!
//! The test runs itself as the program that downloads, and kills it.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use weightloom_hub::fetch::{Completeness, FileChoice, HfRepo, fetch_repo};

use super::hub::{Hub, safetensors};
use super::server::Act;
use super::{Notes, settings};

/// Set in the child process: target folder and endpoint.
const TASK: &str = "WEIGHTLOOM_TEST_FETCHES";
const NAME: &str = "fetch::killed::a_killed_download_resumes";
const SIZE: usize = 400_000;

#[test]
fn a_killed_download_resumes() {
    match env::var(TASK) {
        Ok(task) => download(&task),
        Err(_) => kill_and_resume(),
    }
}

fn download(task: &str) {
    let (folder, endpoint) = task.split_once(' ').unwrap();
    let mut settings = settings(Path::new(folder), endpoint);
    settings.record_every = Duration::ZERO;
    let _ = fetch_repo(&settings, &HfRepo::new("owner/model"), &FileChoice::Model, &());
}

fn kill_and_resume() {
    let folder = tempfile::tempdir().unwrap();
    let model = || Hub::with(&[("config.json", b"{}".to_vec()), ("model.safetensors", safetensors(SIZE, 1))]);
    let hub = model();
    hub.server.change(&Hub::path("model.safetensors"), |file| file.always = Act::Slowly(2000));
    let mut child = Command::new(env::current_exe().unwrap())
        .args([NAME, "--exact", "--nocapture"])
        .env(TASK, format!("{} {}", folder.path().display(), hub.server.url()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let began = Instant::now();
    while hub.server.sent() < SIZE as u64 / 3 {
        assert!(began.elapsed() < Duration::from_secs(30), "nothing is downloaded");
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let blobs = folder.path().join("hub/models--owner--model/blobs");
    assert!(std::fs::read_dir(blobs).unwrap().flatten().all(|entry| {
        let name = entry.file_name().into_string().unwrap();
        name.contains("weightloom") || name.len() == 40
    }));

    // Another server, so that nothing that was on its way is counted.
    let hub = model();
    let notes = Notes::default();
    let settings = settings(folder.path(), &hub.server.url());
    let fetched = fetch_repo(&settings, &HfRepo::new("owner/model"), &FileChoice::Model, &notes).unwrap();
    hub.agrees(&fetched);
    assert_eq!(fetched.completeness, Completeness::Checked);
    let size = hub.files["model.safetensors"].len() as u64;
    let already =
        notes.of("started model.safetensors")[0].rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert!(already > size / 5, "{already} of {size}");
    let config = if notes.of("started config.json").is_empty() { 0 } else { 2 };
    assert_eq!(hub.server.sent(), size - already + config);
}
