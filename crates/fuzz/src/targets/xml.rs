//! libvirt's descriptions of pools and volumes.

use extant_image::Preallocation;
use extant_libvirt::{VolumeXml, definition_from_xml};
use extant_pool::{Definition, Limits, Permissions};

pub(crate) fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(mut definition) = definition_from_xml(text, Limits::default()) {
        assert!(definition.path().is_absolute());
        let json = serde_json::to_vec(&definition).expect("plain data");
        let again: Definition = serde_json::from_slice(&json).expect("it was written here");
        // Not part of a definition that is kept.
        definition.set_permissions(Permissions::default());
        assert_eq!(again, definition);
    }
    if let Ok(volume) = VolumeXml::read(text) {
        for said in [None, Some(Preallocation::Full)] {
            let _ = volume.clone().operation(said, Preallocation::Off);
        }
    }
}
