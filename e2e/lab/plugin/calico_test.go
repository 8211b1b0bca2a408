package plugin

import (
	"encoding/json"
	"strings"
	"testing"
)

// Calico's definitions, accounts and roles stay. What the lab has its own of goes.
func TestWithoutWorkloads(t *testing.T) {
	const manifest = `---
# Source: a
apiVersion: policy/v1
kind: PodDisruptionBudget
---
kind: ConfigMap
data:
  text: |
    {}
---
apiVersion: v1
kind: ServiceAccount
---
kind: CustomResourceDefinition
spec:
  names:
    kind: DaemonSet
---
kind: DaemonSet
---
kind: Deployment
`
	got := string(withoutWorkloads([]byte(manifest)))
	want := "apiVersion: v1\nkind: ServiceAccount\n---\nkind: CustomResourceDefinition\nspec:\n  names:\n    kind: " +
		"DaemonSet\n---\n"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCalicoWorkloads(t *testing.T) {
	text, err := render("calico.yaml", map[string]string{"Image": calicoImage, "Server": "2001:db8::1"})
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "cni_network_config: |-")
	conf, _, ends := strings.Cut(rest, "\n---")
	if !found || !ends {
		t.Fatalf("no cni_network_config in\n%s", text)
	}
	// Calico's installer puts a number there.
	conf = strings.ReplaceAll(conf, "__CNI_MTU__", "0")
	var c struct {
		Plugins []struct {
			Type string
			IPAM map[string]string
		}
	}
	if err := json.Unmarshal([]byte(conf), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Plugins) != 2 || c.Plugins[0].IPAM["assign_ipv4"] != "true" || c.Plugins[0].IPAM["assign_ipv6"] != "true" {
		t.Errorf("%+v", c)
	}
	p, err := Find("calico")
	if err != nil {
		t.Fatal(err)
	}
	images, err := p.Images(Site{Tool: func(name string) string { return "/tools/" + name }})
	if err != nil || len(images) != 1 || images[0].Name != "docker.io/"+calicoImage {
		t.Fatalf("%v, %v", images, err)
	}
	uses := strings.Count(string(text), "image: ")
	own := strings.Count(string(text), "image: "+calicoImage+"\n")
	if uses != own {
		t.Errorf("%d of %d containers run %s", own, uses, calicoImage)
	}
	files := images[0].Platforms[0].Files
	if files["/opt/cni/bin/calico"] != files["/opt/cni/bin/calico-ipam"] {
		t.Errorf("the plugins for links and addresses differ: %v", files)
	}
	for _, program := range []string{"/opt/cni/bin/install", "/opt/calico/bin/calico-node"} {
		if files[program] == "" || !strings.Contains(string(text), "["+program) {
			t.Errorf("%s is not in the image, or not used", program)
		}
	}
}
