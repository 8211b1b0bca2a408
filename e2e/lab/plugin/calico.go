package plugin

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/release/oci"
)

// calicoImage has Calico's own programs. What felix calls, iptables and ipset, comes from the node.
const calicoImage = "lab/calico:v1"

// calico returns Calico by VXLAN, without a BGP daemon, with felix in iptables beside kube-proxy.
func calico() Plugin {
	return Plugin{
		HasKubeProxy: true,
		Packages:     map[string]string{"ipset": "ipset", "iptables": "iptables", "conntrack": "conntrack"},
		Sets:         []toolset.Set{toolset.Calico},
		Images: func(s Site) ([]oci.Image, error) {
			return []oci.Image{{
				Name: "docker.io/" + calicoImage,
				Env:  []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
				Platforms: []oci.Platform{{Architecture: runtime.GOARCH, Files: map[string]string{
					"/opt/calico/bin/calico-node": s.Tool("calico-node"),
					"/opt/cni/bin/install":        s.Tool("calico-install"),
					// One program, which asks for its own name.
					"/opt/cni/bin/calico":      s.Tool("calico"),
					"/opt/cni/bin/calico-ipam": s.Tool("calico"),
				}}},
			}}, nil
		},
		Manifests: calicoManifests,
		Namespace: "kube-system",
		Workloads: []string{"daemonset/calico-node"},
	}
}

// calicoManifests returns Calico's own definitions, accounts and roles, and workloads of the lab's.
func calicoManifests(ctx context.Context, s Site) ([]byte, error) {
	source, err := moduleSource(ctx, "calico", "github.com/projectcalico/calico")
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(source, "manifests/calico-vxlan.yaml"))
	if err != nil {
		return nil, err
	}
	workloads, err := render("calico.yaml", map[string]any{"Image": calicoImage, "Server": s.Plan[0].Legs[0].V6.Addr()})
	if err != nil {
		return nil, err
	}
	return append(withoutWorkloads(text), workloads...), nil
}

// calicoReplaced are the kinds of Calico's manifest that the lab has its own of, or does without.
var calicoReplaced = []string{"PodDisruptionBudget", "ConfigMap", "DaemonSet", "Deployment"}

// documentKind finds the kind of a document, which is not indented.
var documentKind = regexp.MustCompile(`(?m)^kind: (\w+)$`)

// withoutWorkloads returns the other documents of a manifest, each followed by a separator.
func withoutWorkloads(manifest []byte) []byte {
	var out bytes.Buffer
	for document := range bytes.SplitSeq(manifest, []byte("\n---\n")) {
		kind := documentKind.FindSubmatch(document)
		if kind != nil && slices.Contains(calicoReplaced, string(kind[1])) {
			continue
		}
		out.Write(document)
		out.WriteString("\n---\n")
	}
	return out.Bytes()
}
