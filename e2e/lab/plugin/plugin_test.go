package plugin

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// Every plugin has what the lab needs where it makes no network itself.
func TestPluginsAreComplete(t *testing.T) {
	names := Names()
	if !slices.Contains(names, Routes) {
		t.Errorf("the lab's own network is not among %q", names)
	}
	for _, name := range names {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		if p.IsLabs != (name == Routes) {
			t.Errorf("%s: IsLabs is %v", name, p.IsLabs)
		}
		if !p.IsLabs && (p.Manifests == nil || p.Namespace == "" || len(p.Workloads) == 0) {
			t.Errorf("%s: it applies nothing, or nothing shows that it is ready", name)
		}
	}
	if _, err := Find("none"); err == nil || !strings.Contains(err.Error(), "flannel-vxlan") {
		t.Errorf("an unknown network: %v, want an error that names the known ones", err)
	}
}

func TestFlannelManifests(t *testing.T) {
	for backend, want := range map[string]string{"flannel-vxlan": "vxlan", "flannel-host-gw": "host-gw"} {
		p, err := Find(backend)
		if err != nil {
			t.Fatal(err)
		}
		text, err := p.Manifests(t.Context(), Site{})
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), "net-conf.json: |")
		conf, _, ends := strings.Cut(rest, "\n---")
		if !found || !ends {
			t.Fatalf("%s: no net-conf.json in\n%s", backend, text)
		}
		var c struct {
			EnableIPv6           bool
			Network, IPv6Network string
			Backend              struct{ Type string }
		}
		if err := json.Unmarshal([]byte(conf), &c); err != nil {
			t.Fatal(err)
		}
		if c.Backend.Type != want || !c.EnableIPv6 || c.Network == "" || c.IPv6Network == "" {
			t.Errorf("%s: %+v", backend, c)
		}
		images, err := p.Images(Site{Tool: func(name string) string { return "/tools/" + name }})
		if err != nil || len(images) != 1 {
			t.Fatalf("%s: %d images, %v", backend, len(images), err)
		}
		image := strings.TrimPrefix(images[0].Name, "docker.io/")
		uses := strings.Count(string(text), "image: ")
		own := strings.Count(string(text), "image: "+image+"\n")
		if uses != own {
			t.Errorf("%s: %d of %d containers run %s", backend, own, uses, image)
		}
		for _, program := range []string{"flanneld", "install-conf", "flannel"} {
			path := "/opt/bin/" + program
			if images[0].Platforms[0].Files[path] != "/tools/"+program || !strings.Contains(string(text), path) {
				t.Errorf("%s: %s is not in the image, or not used", backend, path)
			}
		}
	}
}
