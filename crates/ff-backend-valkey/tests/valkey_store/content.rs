//! Whatever bytes callers give are the bytes that they get.

use std::collections::BTreeMap;

use ff_core::Blob;
use ff_core::backend::ingress::{CreateExecutionArgs, CreateExecutionResult};
use ff_core::backend::streams::{Frame, FrameKind};
use ff_core::backend::{Attempts, Ingress, Inspection, Streams};
use ff_core::cursor::FrameCursor;
use ff_core::ids::AttemptIndex;
use ff_engine::Settings;

use crate::support::{self, CLUSTER_OF_SHARDS, FAST, Form, GENERAL};
use crate::{claim, open, submission};

/// Contents that something on the way could take for its own.
fn contents() -> Vec<Vec<u8>> {
    let all: Vec<u8> = (0..=255).collect();
    let mut backwards = all.clone();
    backwards.reverse();
    let words: [&[u8]; 11] = [
        b"",
        b"\0",
        b"\0\0\0",
        b"\r\n",
        b"*1\r\n$4\r\nPING\r\n",
        b"$-1\r\n",
        b"\xff\xfe\xfd",
        b"\xc3\x28 \xed\xa0\x80",
        b"{ff:0}r",
        b"false",
        b"\xc1",
    ];
    let words = words.into_iter().map(<[u8]>::to_vec);
    words.chain([all.clone(), backwards, all.repeat(200), vec![0; 100_000]]).collect()
}

/// Text of every width, and such as means something to patterns, scripts and addresses. Names and labels hold no control characters.
const TEXT: &str = "{ff:0}*?[a-z]\\ 'q' \"qq\" %s %0 é ß 漢字 🦀 \u{ffff} \u{10ffff} \u{a0}\u{200b}";

async fn content_is_kept(form: Form) {
    let prefix = support::fresh_prefix();
    let (engine, _) = open(support::options(&prefix, form).unwrap(), Settings::default()).await;
    let tags = BTreeMap::from([("team.name".to_owned(), TEXT.to_owned())]);
    let mut kept = Vec::new();
    for content in contents() {
        let args = CreateExecutionArgs {
            input_payload: Blob::from(content.clone()),
            payload_encoding: Some(TEXT.to_owned()),
            creator_identity: TEXT.to_owned(),
            tags: tags.clone(),
            ..submission()
        };
        let CreateExecutionResult::Created { execution_id, .. } = engine.create_execution(args).await.unwrap() else {
            panic!("it is new")
        };
        let handles = claim(&engine).await;
        let [handle] = &handles[..] else { panic!("{} executions wait", handles.len()) };
        let framed = &content[..content.len().min(50_000)];
        engine.append_frame(handle, Frame::new(FrameKind::Stdout, framed)).await.unwrap();
        engine.save_step(handle, TEXT, Blob::from(content.clone())).await.unwrap();
        engine.progress(handle, Some(1), Some(TEXT)).await.unwrap();
        engine.complete(handle, Some(Blob::from(content.clone()))).await.unwrap();
        kept.push((execution_id, content));
    }

    // Another process has nothing in its memory.
    let (other, _) = open(support::options(&prefix, form).unwrap(), Settings::default()).await;
    for (id, content) in kept {
        let context = other.read_execution_context(id).await.unwrap();
        assert_eq!(context.input_payload.as_ref(), content, "an input");
        assert_eq!((context.payload_encoding.as_deref(), &context.tags), (Some(TEXT), &tags));
        assert_eq!(other.get_execution_result(id).await.unwrap().unwrap().as_ref(), content, "a result");
        assert_eq!(other.read_steps(id).await.unwrap()[TEXT].as_ref(), content, "a step");
        let frames = other.read_stream(id, AttemptIndex(0), FrameCursor::Start, FrameCursor::End, 10).await.unwrap();
        assert_eq!(frames.frames.len(), 1);
        assert_eq!(frames.frames[0].payload.as_ref(), &content[..content.len().min(50_000)], "a frame");
    }
}

#[tokio::test]
async fn all_bytes_come_back_from_a_server() {
    content_is_kept(FAST).await;
}

#[tokio::test]
async fn all_bytes_come_back_from_a_server_without_fast_paths() {
    content_is_kept(GENERAL).await;
}

#[tokio::test]
async fn all_bytes_come_back_from_a_cluster() {
    content_is_kept(CLUSTER_OF_SHARDS).await;
}
