//! A kernel whose nftables cannot redirect a connection unchanged: addresses are translated there, and the sidecar sees the same ones. The
//! guest has no module `nft_tproxy`. S2.13, S3.5

use lockgate_guest::{Caller, Parts, Scenario, boot};

const SCENARIOS: &[Scenario] = &[Scenario {
    name: "connections are redirected, and decided by the address they were made to",
    script: "echo module=$(grep nft_tproxy /proc/modules); echo translated=$(grep -c nft_redir /proc/modules)
        lockgate run --allow 93.184.216.34:80 -- sh -c 'for address in 93.184.216.34 93.184.216.35; do
            echo $address=$(wget -Y off -O - http://$address/ 2>&1 | grep -o \"HTTP/1.1 [0-9]*\"); done
            httpd -p 127.0.0.1:8000 -h . && echo own=$(wget -Y off -q -O /dev/null http://127.0.0.1:8000/probe && echo reached)'
        echo code=$?",
    check: |answer| {
        assert!(answer.said("module").is_empty() && answer.said("translated") != "0", "{answer}");
        // The guest has no link to anywhere, so an allowed address cannot be dialled.
        assert!(answer.said("93.184.216.34") == "HTTP/1.1 502", "{answer}");
        assert!(answer.said("93.184.216.35") == "HTTP/1.1 403", "{answer}");
        assert!(answer.said("own") == "reached" && answer.said("code") == "0", "{answer}");
        assert!(answer.stderr.contains("denied http://93.184.216.35/"), "{answer}");
    },
}];

#[test]
fn without_tproxy_connections_are_redirected() {
    let Some(parts) = Parts::find() else { return };
    let callers = [Caller::Root, Caller::Delegated];
    let scenarios: Vec<(Caller, Scenario)> =
        callers.into_iter().flat_map(|caller| SCENARIOS.iter().map(move |it| (caller, *it))).collect();
    for ((caller, scenario), answer) in scenarios.iter().zip(&boot(&parts, &scenarios)) {
        println!("{caller:?}: {}", scenario.name);
        (scenario.check)(answer);
    }
}
