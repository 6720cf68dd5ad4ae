//! The space of a file in the layers below it, as text.

use extant_hostfs::DeviceBelow;
use extant_space::{ByteSize, LayerStates};

use crate::print;

/// Adds a row for each layer.
pub fn describe(out: &mut String, layers: &[LayerStates]) {
    for layer in layers {
        let states = [
            (layer.written_bytes, "written"),
            (layer.unwritten_bytes, "unwritten"),
            (layer.hole_bytes, "hole"),
            (layer.shared_bytes, "shared"),
        ];
        let states: Vec<String> = states
            .into_iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, state)| format!("{} {state}", ByteSize(bytes)))
            .collect();
        let text = format!(
            "{}: {}, extents: {}",
            layer.layer,
            states.join(", "),
            layer.extents
        );
        print::row(out, "below", text);
    }
}

/// A device with its kind, and with its members if it has several.
pub fn device(device: &DeviceBelow) -> String {
    let members = match &*device.members {
        [] | [_] => String::new(),
        members => format!(" of {}", members.join(" and ")),
    };
    let reason = device.reason.as_ref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{} ({}{members}{reason})", device.name, device.kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_has_the_states_that_occur() {
        let mut out = String::new();
        let layer = LayerStates {
            depth: 1,
            layer: "disk.img".to_owned(),
            written_bytes: 1 << 20,
            unwritten_bytes: 0,
            hole_bytes: 4096,
            shared_bytes: 0,
            extents: 2,
        };
        describe(&mut out, &[layer]);
        assert!(
            out.ends_with("disk.img: 1 MiB written, 4 KiB hole, extents: 2"),
            "{out}"
        );
    }
}
