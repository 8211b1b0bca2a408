package plugin

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"runtime"
	"text/template"

	"github.com/holdfast-lb/holdfast/e2e/lab/toolset"
	"github.com/holdfast-lb/holdfast/release/oci"
)

//go:embed files
var files embed.FS

// flannelImage has flannel's own programs. What flannel calls, iptables, comes from the node.
const flannelImage = "lab/flannel:v1"

// flannel returns flannel with one of its backends, as its own manifest runs it, with IPv6 besides.
func flannel(backend string) Plugin {
	return Plugin{
		HasKubeProxy: true,
		Sets:         []toolset.Set{toolset.Flannel},
		Images: func(s Site) ([]oci.Image, error) {
			programs := map[string]string{}
			for program := range toolset.Flannel.Programs {
				programs["/opt/bin/"+program] = s.Tool(program)
			}
			return []oci.Image{{
				Name: "docker.io/" + flannelImage, Entrypoint: []string{"/opt/bin/flanneld"},
				Env:       []string{"PATH=/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
				Platforms: []oci.Platform{{Architecture: runtime.GOARCH, Files: programs}},
			}}, nil
		},
		Manifests: func(context.Context, Site) ([]byte, error) {
			return render("flannel.yaml", map[string]string{"Image": flannelImage, "Backend": backend})
		},
		Namespace: "kube-flannel",
		Workloads: []string{"daemonset/kube-flannel-ds"},
	}
}

// render fills in one of the embedded files.
func render(name string, data any) ([]byte, error) {
	t, err := template.New(name).Option("missingkey=error").ParseFS(files, "files/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", name, err)
	}
	return b.Bytes(), nil
}
