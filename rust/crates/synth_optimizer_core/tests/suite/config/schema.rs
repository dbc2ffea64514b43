//! The generated JSON Schema agrees with the loader.

use serde_json::{Value, json};
use synth_optimizer_core::config::{Config, json_schema};

use super::{SMALLEST, read};

/// Returns the definition that a property refers to, directly or as an optional value.
fn resolved<'s>(root: &'s Value, schema: &'s Value) -> &'s Value {
    let branch = schema.get("anyOf").and_then(|branches| branches.get(0)).unwrap_or(schema);
    match branch.get("$ref").and_then(Value::as_str) {
        Some(name) => &root["$defs"][name.trim_start_matches("#/$defs/")],
        None => schema,
    }
}

fn walk(root: &Value, schema: &Value, path: &str, visit: &mut dyn FnMut(&str, &Value, &Value)) {
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else { return };
    for (name, property) in properties.iter().filter(|(_, property)| property.get("deprecated").is_none()) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let target = resolved(root, property);
        visit(&path, property, target);
        walk(root, target, &path, visit);
    }
}

#[test]
fn every_field_is_described() {
    let schema = json_schema();
    let mut count = 0;
    walk(&schema, &schema, "", &mut |path, property, target| {
        let text = property.get("description").or_else(|| target.get("description"));
        assert!(text.and_then(Value::as_str).is_some_and(|text| !text.is_empty()), "{path} has no description");
        count += 1;
    });
    assert!(count > 140, "{count}");
}

#[test]
fn the_defaults_of_the_schema_are_the_defaults_of_the_types() {
    let schema = json_schema();
    let mut config = Config {
        dataset: Some(Default::default()),
        taskset: Some(Default::default()),
        policy: Some(Default::default()),
        ..Config::default()
    };
    config.gepa.task_pools = Some(Default::default());
    let defaults = serde_json::to_value(&config).unwrap();
    walk(&schema, &schema, "", &mut |path, property, target| {
        if target.get("properties").is_some() {
            return;
        }
        let value = path.split('.').try_fold(&defaults, |value, name| value.get(name)).unwrap_or(&Value::Null);
        assert_eq!(property.get("default").unwrap_or(&json!(null)), value, "{path}");
    });
}

#[test]
fn the_effective_values_are_the_fields_of_the_schema() {
    let schema = json_schema();
    let mut fields = Vec::new();
    walk(&schema, &schema, "", &mut |path, _, target| {
        if target.get("properties").is_none() {
            fields.push(path.to_owned());
        }
    });
    let without_maps = SMALLEST.split("[seed_candidate]").next().unwrap();
    let values: Vec<_> = read(without_maps).unwrap().values.into_iter().map(|value| value.path).collect();
    assert_eq!(values, fields);
}

#[test]
fn no_table_takes_unknown_names() {
    let schema = json_schema();
    walk(&schema, &schema, "", &mut |path, _, target| {
        if target.get("properties").is_some() {
            assert_eq!(target["additionalProperties"], json!(false), "{path}");
        }
    });
}

#[test]
fn the_schema_takes_the_other_spellings() {
    let schema = json_schema();
    assert_eq!(schema["$defs"]["Direction"]["enum"].as_array().unwrap().len(), 12);
    let sandbox = schema["$defs"]["SandboxMode"]["enum"].as_array().unwrap();
    assert!(sandbox.contains(&json!("workspace-write")) && sandbox.contains(&json!("workspace_write")));
    assert_eq!(schema["$defs"]["GepaSection"]["properties"]["max_tokens"]["deprecated"], json!(true));
}
