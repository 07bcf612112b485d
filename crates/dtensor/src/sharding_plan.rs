//! Where the parameters and activations of a model live.

use weightloom_errors::nearest;
use weightloom_layout::{Layout, Mesh};

use crate::dtensor::DTensor;
use crate::error::DTensorError;

/// Layouts by name. A name is made of parts with dots between, and a pattern
/// may have `*` for any one part: `layers.*.mlp.up`.
#[derive(Clone, Debug)]
pub struct ShardingPlan {
    mesh: Mesh,
    parameters: Vec<Entry>,
    uses: Vec<Entry>,
    inputs: Vec<Entry>,
    outputs: Vec<Entry>,
}

#[derive(Clone, Debug)]
struct Entry {
    pattern: String,
    layout: Layout,
}

/// Whether a pattern of a plan is about a name.
pub fn name_matches(pattern: &str, name: &str) -> bool {
    let (mut wanted, mut found) = (pattern.split('.'), name.split('.'));
    loop {
        match (wanted.next(), found.next()) {
            (None, None) => return true,
            (Some(wanted), Some(found)) if wanted == "*" || wanted == found => {}
            _ => return false,
        }
    }
}

/// The entry for a name. Later ones override earlier ones.
fn found(entries: &[Entry], name: &str) -> Option<Layout> {
    entries.iter().rev().find(|entry| name_matches(&entry.pattern, name)).map(|entry| entry.layout)
}

impl ShardingPlan {
    /// A plan for a mesh, in which every parameter is replicated.
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh, parameters: Vec::new(), uses: Vec::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn entry(&self, pattern: &str, layout: Layout) -> Result<Entry, DTensorError> {
        if layout.mesh() != self.mesh {
            let first = Layout::replicated(self.mesh);
            return Err(DTensorError::Meshes { op: "a sharding plan", first, other: layout });
        }
        Ok(Entry { pattern: pattern.to_owned(), layout })
    }

    /// Parameters with such names are held like this.
    pub fn parameter(mut self, pattern: &str, layout: Layout) -> Result<Self, DTensorError> {
        self.parameters.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// Parameters with such names are brought into this layout when they are
    /// used.
    pub fn used_as(mut self, pattern: &str, layout: Layout) -> Result<Self, DTensorError> {
        self.uses.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// What goes into modules with such names is brought into this layout.
    pub fn input(mut self, pattern: &str, layout: Layout) -> Result<Self, DTensorError> {
        self.inputs.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// What comes out of modules with such names is brought into this layout.
    pub fn output(mut self, pattern: &str, layout: Layout) -> Result<Self, DTensorError> {
        self.outputs.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// Where a parameter is held.
    pub fn layout_of(&self, parameter: &str) -> Layout {
        found(&self.parameters, parameter).unwrap_or_else(|| Layout::replicated(self.mesh))
    }

    /// Where a parameter is when it is used.
    pub fn used_layout_of(&self, parameter: &str) -> Layout {
        found(&self.uses, parameter).unwrap_or_else(|| self.layout_of(parameter))
    }

    /// A parameter as it is used.
    pub fn used(&self, name: &str, parameter: &DTensor) -> Result<DTensor, DTensorError> {
        found(&self.uses, name).map_or_else(|| Ok(parameter.clone()), |layout| parameter.redistribute(layout))
    }

    /// What goes into a module.
    pub fn enter(&self, module: &str, x: DTensor) -> Result<DTensor, DTensorError> {
        found(&self.inputs, module).map_or_else(|| Ok(x.clone()), |layout| x.redistribute(layout))
    }

    /// What comes out of a module.
    pub fn leave(&self, module: &str, x: DTensor) -> Result<DTensor, DTensorError> {
        found(&self.outputs, module).map_or_else(|| Ok(x.clone()), |layout| x.redistribute(layout))
    }

    /// Checks that every pattern is about one of a model's parameters or
    /// modules: one that is not is a mistake.
    pub fn check(&self, parameters: &[&str], modules: &[&str]) -> Result<(), DTensorError> {
        let about = [
            (&self.parameters, parameters),
            (&self.uses, parameters),
            (&self.inputs, modules),
            (&self.outputs, modules),
        ];
        for (entries, names) in about {
            let unmatched =
                entries.iter().find(|entry| !names.iter().any(|name| name_matches(&entry.pattern, name)));
            if let Some(entry) = unmatched {
                let near = nearest(&entry.pattern, names.iter().copied()).map(str::to_owned);
                return Err(DTensorError::UnknownName { pattern: entry.pattern.clone(), near });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use weightloom_layout::Placement;

    use super::*;

    #[test]
    fn patterns_match_part_by_part() {
        assert!(
            name_matches("layers.*.up", "layers.3.up")
                && name_matches("embed", "embed")
                && name_matches("*", "embed")
        );
        assert!(!name_matches("layers.*", "layers.3.up") && !name_matches("layers.*.up", "layers.up"));
        assert!(!name_matches("up", "layers.3.up") && !name_matches("", "embed"));
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]
    fn later_entries_override_and_unknown_names_are_told() {
        let mesh = Mesh::new(&[("tp", 2)]).unwrap();
        let plan = ShardingPlan::new(mesh)
            .parameter("layers.*.up", Layout::new(mesh, &[Placement::Shard(0)]).unwrap())
            .unwrap()
            .parameter("layers.1.up", Layout::new(mesh, &[Placement::Shard(1)]).unwrap())
            .unwrap();
        assert_eq!(plan.layout_of("layers.0.up").placements(), [Placement::Shard(0)]);
        assert_eq!(plan.layout_of("layers.1.up").placements(), [Placement::Shard(1)]);
        assert_eq!(plan.layout_of("norm").placements(), [Placement::Replicate]);
        plan.check(&["layers.0.up", "layers.1.up"], &[]).unwrap();
        let error = plan.check(&["layers.0.up", "norm"], &[]).unwrap_err();
        assert_eq!(error.to_string(), "the plan names `layers.1.up`, which the model does not have");
    }
}
