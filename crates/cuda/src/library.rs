//! Where NVIDIA's libraries lie on this machine.
//!
//! The driver's library comes with the driver. cuBLASLt comes with CUDA's toolkit or
//! from PyPI, whose packages put it below the `site-packages` of a Python environment.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// The variable that names a library file, or a folder with it.
const VARIABLE: &str = "WEIGHTLOOM_CUBLASLT";

/// Names of versions that fit, the best first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// Files that may be cuBLASLt, the best first: the one that a variable names, alone if
/// there is one; those of Python environments and of the toolkit; then the names that
/// the system's loader knows.
pub(crate) fn candidates(variable: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if let Some(named) = variable(VARIABLE).filter(|path| !path.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_dir() {
            NAMES.iter().map(|name| named.join(name)).collect()
        } else {
            vec![named]
        };
    }
    let mut folders = Vec::new();
    let environments = variable("VIRTUAL_ENV").into_iter().chain(variable("CONDA_PREFIX")).map(PathBuf::from);
    let on_path = variable("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path)
        .filter(|folder| folder.join("python3").exists())
        .filter_map(|folder| folder.parent().map(Path::to_owned));
    for environment in environments.chain(on_path) {
        folders.extend(python_folders(&environment));
    }
    let toolkits = variable("CUDA_HOME").into_iter().chain(variable("CUDA_PATH"));
    folders.extend(toolkits.map(|toolkit| Path::new(&toolkit).join("lib64")));
    folders.push("/usr/local/cuda/lib64".into());
    let mut files: Vec<PathBuf> = Vec::new();
    for file in NAMES.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name))) {
        if file.exists() && !files.contains(&file) {
            files.push(file);
        }
    }
    files.extend(NAMES.map(PathBuf::from));
    files
}

/// The folders of NVIDIA's packages in a Python environment.
fn python_folders(environment: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(environment.join("lib")).into_iter().flatten().flatten();
    let python = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("python3"));
    versions
        .filter(|entry| python(&entry.file_name()))
        .flat_map(|entry| {
            let packages = entry.path().join("site-packages/nvidia");
            ["cu13/lib", "cublas/lib"].map(|folder| packages.join(folder))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_the_only_candidate() {
        let variable = |name: &str| (name == VARIABLE).then(|| "/opt/own/libcublasLt.so.13".to_owned());
        assert_eq!(candidates(&variable), [PathBuf::from("/opt/own/libcublasLt.so.13")]);
    }

    #[test]
    fn the_packages_of_the_python_on_the_path_come_before_the_loader() {
        let root = std::env::temp_dir().join(format!("weightloom-cuda-{}", std::process::id()));
        let packages = root.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        fs::create_dir_all(&packages).unwrap();
        fs::create_dir_all(root.join("bin")).unwrap();
        fs::write(root.join("bin/python3"), "").unwrap();
        fs::write(packages.join(NAMES[0]), "").unwrap();
        let path = root.join("bin").display().to_string();
        let found = candidates(&|name| (name == "PATH").then(|| path.clone()));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found[0], packages.join(NAMES[0]));
        assert_eq!(found[found.len() - 2..], NAMES.map(PathBuf::from));
    }
}
