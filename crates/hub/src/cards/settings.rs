//! Folders and environments of cards.

use std::path::PathBuf;

use super::source::{CardSource, SourceKind};
use super::store::CardStore;

/// Cards for all users of the machine.
const SYSTEM: &str = "/etc/weightloom/assets";
/// The environment that is always tried.
pub(super) const USER: &str = "user";

/// Folders and environments of cards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreSettings {
    /// Folders; later ones override earlier ones.
    pub folders: Vec<(SourceKind, PathBuf)>,
    /// Environments, in the order of lookup.
    pub environments: Vec<String>,
}

impl StoreSettings {
    /// The variable with environments, separated by commas.
    pub const ENVIRONMENTS: &str = "WEIGHTLOOM_ENV";

    /// Folders from environment variables and the command line, in this order: `/etc/weightloom/assets`,
    /// `WEIGHTLOOM_ASSET_DIR`, `$XDG_CONFIG_HOME/weightloom/assets` (or
    /// `~/.config/weightloom/assets`), `WEIGHTLOOM_USER_ASSET_DIR`, `extra`.
    ///
    /// Environments are those of `WEIGHTLOOM_ENV`, separated by commas and in the
    /// order of lookup, and then `user`.
    ///
    /// Empty variables count as unset.
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<String>, extra: &[PathBuf]) -> Self {
        let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        // The XDG specification makes relative paths invalid.
        let configs = folder("XDG_CONFIG_HOME").filter(|path| path.is_absolute());
        let configs = configs.or_else(|| folder("HOME").map(|home| home.join(".config")));
        let user = configs.map(|configs| configs.join("weightloom").join("assets"));
        let mut folders = vec![(SourceKind::System, PathBuf::from(SYSTEM))];
        folders.extend(folder("WEIGHTLOOM_ASSET_DIR").map(|path| (SourceKind::System, path)));
        folders.extend(user.map(|path| (SourceKind::User, path)));
        folders.extend(folder("WEIGHTLOOM_USER_ASSET_DIR").map(|path| (SourceKind::User, path)));
        folders.extend(extra.iter().map(|path| (SourceKind::AssetDir, path.clone())));
        // A repeated folder must not conflict with itself.
        let mut unique: Vec<(SourceKind, PathBuf)> = Vec::new();
        for (kind, path) in folders.into_iter().rev() {
            if unique.iter().all(|(_, other)| *other != path) {
                unique.push((kind, path));
            }
        }
        unique.reverse();
        let selected = variable(Self::ENVIRONMENTS).unwrap_or_default();
        let selected = selected.split(',').map(str::trim).filter(|name| !name.is_empty());
        let mut environments: Vec<String> = Vec::new();
        for name in selected.chain([USER]) {
            if environments.iter().all(|other| other != name) {
                environments.push(name.to_owned());
            }
        }
        Self { folders: unique, environments }
    }

    /// The cards in the folders.
    pub fn sources(&self) -> Vec<CardSource> {
        self.folders.iter().map(|(kind, path)| CardSource::folder(*kind, path)).collect()
    }

    /// A store of the built-in cards and those in the folders.
    pub fn store(&self, built_in: &[(&str, &str)]) -> CardStore {
        let sources = std::iter::once(CardSource::built_in(built_in)).chain(self.sources());
        CardStore::new(sources).with_environments(self.environments.iter().cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folders(variables: &[(&str, &str)], extra: &[&str]) -> Vec<String> {
        let variable =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        let extra: Vec<PathBuf> = extra.iter().map(PathBuf::from).collect();
        let settings = StoreSettings::from_variables(&variable, &extra);
        settings.folders.iter().map(|(kind, path)| format!("{kind}: {}", path.display())).collect()
    }

    #[test]
    fn later_folders_are_the_more_personal_ones() {
        let variables = [
            ("WEIGHTLOOM_ASSET_DIR", "/opt/cards"),
            ("XDG_CONFIG_HOME", "/home/me/conf"),
            ("HOME", "/home/me"),
            ("WEIGHTLOOM_USER_ASSET_DIR", "/my cards"),
        ];
        assert_eq!(
            folders(&variables, &["one", "two"]),
            [
                "system: /etc/weightloom/assets",
                "system: /opt/cards",
                "user: /home/me/conf/weightloom/assets",
                "user: /my cards",
                "asset dir: one",
                "asset dir: two",
            ]
        );
    }

    #[test]
    fn without_variables_there_are_the_usual_folders() {
        assert_eq!(folders(&[], &[]), ["system: /etc/weightloom/assets"]);
        let relative = [("HOME", "/home/me"), ("XDG_CONFIG_HOME", "conf"), ("WEIGHTLOOM_ASSET_DIR", "")];
        assert_eq!(
            folders(&relative, &[]),
            ["system: /etc/weightloom/assets", "user: /home/me/.config/weightloom/assets"]
        );
    }

    #[test]
    fn selected_environments_come_before_the_users() {
        let environments = |value: &str| {
            let variable = |name: &str| (name == StoreSettings::ENVIRONMENTS).then(|| value.to_owned());
            StoreSettings::from_variables(&variable, &[]).environments
        };
        assert_eq!(environments(""), ["user"]);
        assert_eq!(environments("cluster, laptop,,cluster"), ["cluster", "laptop", "user"]);
        assert_eq!(environments("user,cluster"), ["user", "cluster"]);
    }

    #[test]
    fn a_folder_that_is_named_twice_is_read_once() {
        let twice = [("WEIGHTLOOM_ASSET_DIR", "/a"), ("WEIGHTLOOM_USER_ASSET_DIR", "/a")];
        assert_eq!(folders(&twice, &["/a"]), ["system: /etc/weightloom/assets", "asset dir: /a"]);
    }
}
