//! Reports of LVM 2.03.31.

use super::*;

const REPORT: &str = r#"
  {
      "report": [
          {
              "vg": [
                  {"vg_uuid":"CTapsu-KtsG-0qx4-EaMi-TERm-GkLN-La5ieW", "vg_attr":"wz--n-", "vg_extent_size":"4194304", "vg_size":"125829120"}
              ]
              ,
              "pv": [
                  {"pv_attr":"a--", "pv_free":"33554432"},
                  {"pv_attr":"a--", "pv_free":"4194304"}
              ]
              ,
              "lv": [
                  {"lv_name":".extant-0123456789abcdef0123456789abcdef-13.copy", "lv_uuid":"GRNdR2-rsxN-5ABs-Z3ZM-kcdc-oQ7m-v4Kn8I", "lv_size":"12582912", "lv_tags":"extant.format=raw,extant.growing=web/8388608", "lv_layout":"linear", "lv_role":"public", "lv_kernel_major":"253", "lv_kernel_minor":"0"},
                  {"lv_name":"big", "lv_uuid":"HvYjiF-cFnm-6lfv-uy7P-JrTu-cDAi-aZDt9I", "lv_size":"83886080", "lv_tags":"", "lv_layout":"linear", "lv_role":"public", "lv_kernel_major":"-1", "lv_kernel_minor":"-1"}
              ]
              ,
              "pvseg": [
                  {"pvseg_start":"0"},
                  {"pvseg_start":"2"}
              ]
              ,
              "seg": [
                  {"lv_uuid":"GRNdR2-rsxN-5ABs-Z3ZM-kcdc-oQ7m-v4Kn8I"},
                  {"lv_uuid":"HvYjiF-cFnm-6lfv-uy7P-JrTu-cDAi-aZDt9I"}
              ]
          }
      ]
      ,
      "log": [
      ]
  }
"#;

const FAILED: &str = r#"
  {
      "report": [
      ]
      ,
      "log": [
          {"log_seq_num":"1", "log_type":"error", "log_context":"processing", "log_object_type":"vg", "log_object_name":"nosuch", "log_object_id":"", "log_object_group":"", "log_object_group_id":"", "log_message":"Volume group \"nosuch\" not found", "log_errno":"-1", "log_ret_code":"0"},
          {"log_seq_num":"3", "log_type":"status", "log_context":"processing", "log_object_type":"vg", "log_object_name":"nosuch", "log_object_id":"", "log_object_group":"", "log_object_group_id":"", "log_message":"failure", "log_errno":"-1", "log_ret_code":"5"}
      ]
  }
"#;

#[test]
fn report_has_the_space_and_the_volumes_of_a_group() {
    let report = Report::parse(REPORT).unwrap();
    assert_eq!(report.uuid, "CTapsu-KtsG-0qx4-EaMi-TERm-GkLN-La5ieW");
    assert_eq!(
        (report.extent_bytes, report.size_bytes),
        (4 << 20, 120 << 20)
    );
    assert_eq!((report.free_bytes, report.fault), (36 << 20, None));
    let [growing, foreign] = &report.volumes[..] else {
        panic!("{report:?}");
    };
    assert_eq!(growing.growing(), Some(("web", 8 << 20)));
    assert_eq!(
        (growing.size_bytes, growing.device),
        (12 << 20, Some((253, 0)))
    );
    assert!(growing.is_own() && growing.replaced().is_none());
    assert!(!foreign.is_own() && foreign.growing().is_none());
    assert_eq!(report.named("big").unwrap().device, None);
}

#[test]
fn space_of_disks_that_take_no_volumes_is_not_free() {
    for attributes in ["u--", "a-m", "d--"] {
        let text = REPORT.replacen("\"a--\"", &format!("{attributes:?}"), 1);
        assert_eq!(
            Report::parse(&text).unwrap().free_bytes,
            4 << 20,
            "{attributes}"
        );
    }
}

#[test]
fn volumes_without_all_of_their_space_are_foreign() {
    let parse = |layout: &str, role: &str| {
        let text = REPORT
            .replacen("\"linear\"", &format!("{layout:?}"), 1)
            .replacen("\"public\"", &format!("{role:?}"), 1);
        Report::parse(&text).unwrap().volumes.remove(0)
    };
    for (layout, role) in [
        ("thin,sparse", "public"),
        ("linear", "private,thin,pool,data"),
        ("linear", "public,snapshot,thicksnapshot"),
    ] {
        assert!(!parse(layout, role).is_own(), "{layout} {role}");
    }
    assert!(parse("raid,raid1", "public").is_own());
    let origin = parse("linear", "public,origin,thickorigin");
    assert!(origin.is_own());
    assert_eq!(
        origin.check_no_snapshots().unwrap_err().kind(),
        ErrorKind::InUse
    );
    parse("linear", "public").check_no_snapshots().unwrap();
}

#[test]
fn groups_that_the_pool_cannot_use_are_known() {
    for (attributes, word) in [("wzx-n-", "exported"), ("wz--ns", "shared")] {
        let text = REPORT.replace("wz--n-", attributes);
        let fault = Report::parse(&text).unwrap().fault;
        assert!(
            fault.is_some_and(|fault| fault.contains(word)),
            "{attributes}"
        );
    }
}

#[test]
fn text_that_is_no_report_is_refused_and_errors_of_a_failed_one_are_found() {
    for text in ["", "{}", FAILED, &REPORT.replace("12582912", "12.00m")] {
        let error = Report::parse(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{text}");
    }
    assert_eq!(messages(FAILED), ["Volume group \"nosuch\" not found"]);
    assert!(messages("  Volume group not found").is_empty());
    assert!(messages(REPORT).is_empty());
}
