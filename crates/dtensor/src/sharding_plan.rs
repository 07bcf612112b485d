//! Sharding plans: layouts of parameters and activations by name.

use weightloom_errors::nearest;
use weightloom_layout::{Layout, Mesh};

use crate::dtensor::DTensor;
use crate::error::{DTensorError, Result};

/// Layouts of parameters, module inputs and module outputs by name. In a pattern,
/// `*` matches one part of a dotted name: `layers.*.mlp.up`.
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

/// Whether a pattern matches a name.
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

/// The layout for a name. Later entries override earlier ones.
fn layout_for(entries: &[Entry], name: &str) -> Option<Layout> {
    entries.iter().rev().find(|entry| name_matches(&entry.pattern, name)).map(|entry| entry.layout)
}

impl ShardingPlan {
    /// A plan for a mesh that replicates every parameter.
    pub fn new(mesh: Mesh) -> Self {
        Self { mesh, parameters: Vec::new(), uses: Vec::new(), inputs: Vec::new(), outputs: Vec::new() }
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    fn entry(&self, pattern: &str, layout: Layout) -> Result<Entry> {
        if layout.mesh() != self.mesh {
            let first = Layout::replicated(self.mesh);
            return Err(DTensorError::Meshes { op: "a sharding plan", first, other: layout });
        }
        Ok(Entry { pattern: pattern.to_owned(), layout })
    }

    /// Sets the layout in which matching parameters are stored.
    pub fn parameter(mut self, pattern: &str, layout: Layout) -> Result<Self> {
        self.parameters.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// Sets the layout in which matching parameters are used.
    pub fn used_as(mut self, pattern: &str, layout: Layout) -> Result<Self> {
        self.uses.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// Sets the layout of inputs of matching modules.
    pub fn input(mut self, pattern: &str, layout: Layout) -> Result<Self> {
        self.inputs.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// Sets the layout of outputs of matching modules.
    pub fn output(mut self, pattern: &str, layout: Layout) -> Result<Self> {
        self.outputs.push(self.entry(pattern, layout)?);
        Ok(self)
    }

    /// The layout in which a parameter is stored.
    pub fn layout_of(&self, parameter: &str) -> Layout {
        layout_for(&self.parameters, parameter).unwrap_or_else(|| Layout::replicated(self.mesh))
    }

    /// The layout in which a parameter is used.
    pub fn used_layout_of(&self, parameter: &str) -> Layout {
        layout_for(&self.uses, parameter).unwrap_or_else(|| self.layout_of(parameter))
    }

    /// Redistributes a parameter to the layout in which it is used.
    pub fn used(&self, name: &str, parameter: &DTensor) -> Result<DTensor> {
        layout_for(&self.uses, name)
            .map_or_else(|| Ok(parameter.clone()), |layout| parameter.redistribute(layout))
    }

    /// Redistributes the input of a module.
    pub fn enter(&self, module: &str, x: DTensor) -> Result<DTensor> {
        layout_for(&self.inputs, module).map_or_else(|| Ok(x.clone()), |layout| x.redistribute(layout))
    }

    /// Redistributes the output of a module.
    pub fn leave(&self, module: &str, x: DTensor) -> Result<DTensor> {
        layout_for(&self.outputs, module).map_or_else(|| Ok(x.clone()), |layout| x.redistribute(layout))
    }

    /// Checks that every pattern matches a parameter or a module of a model.
    pub fn check(&self, parameters: &[&str], modules: &[&str]) -> Result<()> {
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
    fn later_entries_override_and_unknown_names_are_errors() {
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
        assert_eq!(
            error.to_string(),
            "the sharding plan names `layers.1.up`, which matches nothing in the model"
        );
    }
}
