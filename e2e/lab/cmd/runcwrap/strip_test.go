package main

import (
	"encoding/json"
	"reflect"
	"testing"
)

func TestStrip(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{
			"limits go, devices and all else stay",
			`{"ociVersion":"1.2.0","process":{"args":["/a"]},"linux":{"cgroupsPath":"/k8s.io/x","resources":{"devices":[{"allow":false}],"memory":{"limit":1},` +
				`"cpu":{"shares":2}}}}`,
			`{"ociVersion":"1.2.0","process":{"args":["/a"]},"linux":{"cgroupsPath":"/k8s.io/x","resources":{"devices":[{"allow":false}]}}}`,
		},
		{"no devices", `{"linux":{"resources":{"cpu":{"shares":2}}}}`, `{"linux":{"resources":{}}}`},
		{"no resources", `{"linux":{"cgroupsPath":"/x"}}`, `{"linux":{"cgroupsPath":"/x"}}`},
		{"no linux", `{"process":{}}`, `{"process":{}}`},
	} {
		out, err := strip([]byte(tc.in))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		var got, want any
		if err := json.Unmarshal(out, &got); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, out, tc.want)
		}
	}
	if _, err := strip([]byte("{")); err == nil {
		t.Error("broken configuration: no error")
	}
}

func TestSubcommand(t *testing.T) {
	for _, tc := range []struct {
		args         []string
		verb, bundle string
	}{
		{[]string{"--root", "/run/runc", "--log", "/l", "--log-format", "json", "--systemd-cgroup", "create", "--bundle",
			"/b", "id"}, "create", "/b"},
		{[]string{"run", "-b=/b", "id"}, "run", "/b"},
		{[]string{"create", "id"}, "create", "."},
		{[]string{"--root", "create", "update", "--resources", "-", "id"}, "update", "."},
		{[]string{"--version"}, "", "."},
	} {
		verb, rest := subcommand(tc.args)
		if verb != tc.verb || bundle(rest) != tc.bundle {
			t.Errorf("%q: got %q with bundle %q, want %q with %q", tc.args, verb, bundle(rest), tc.verb, tc.bundle)
		}
	}
}
