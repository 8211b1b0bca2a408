package main

import (
	"slices"
	"testing"
)

func TestMissingCapabilities(t *testing.T) {
	for status, want := range map[string][]string{
		"Name:\tx\nCapBnd:\t000001ffffffffff\n": nil,
		"Name:\tx\nCapBnd:\t000001fffeffffff\n": {"CAP_SYS_RESOURCE"},
		"CapBnd:\t000000fffffffffe\n":           {"CAP_CHOWN", "CAP_CHECKPOINT_RESTORE"},
	} {
		got, err := missingCapabilities(status)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %v, %v; want %v", status, got, err, want)
		}
	}
	if _, err := missingCapabilities("Name:\tx\n"); err == nil {
		t.Error("no error without a bounding set")
	}
}

func TestFit(t *testing.T) {
	const limit = `"rlimits":[{"hard":18446744073709551615}]`
	for _, tc := range []struct {
		process    bool
		have, want string
	}{
		{false, `{"process":{"capabilities":{"bounding":["CAP_A","CAP_SYS_RESOURCE"]},"oomScoreAdj":-5,` + limit + `}}`,
			`{"process":{"capabilities":{"bounding":["CAP_A"]},` + limit + `}}`},
		{true, `{"capabilities":{"bounding":["CAP_SYS_RESOURCE"]},` + limit + `}`,
			`{"capabilities":{"bounding":[]},` + limit + `}`},
		{false, `{"ociVersion":"1.0"}`, `{"ociVersion":"1.0"}`},
	} {
		got, err := fit([]byte(tc.have), tc.process, []string{"CAP_SYS_RESOURCE"})
		if err != nil || string(got) != tc.want {
			t.Errorf("got %s, %v; want %s", got, err, tc.want)
		}
	}
}

func TestConfigured(t *testing.T) {
	for _, tc := range []struct {
		args    []string
		file    string
		process bool
	}{
		{[]string{"--root", "/r", "create", "--bundle", "/b", "id"}, "/b/config.json", false},
		{[]string{"run", "-b=/b", "id"}, "/b/config.json", false},
		{[]string{"--log", "x", "exec", "--process", "/p.json", "id"}, "/p.json", true},
		{[]string{"kill", "id"}, "", false},
	} {
		if file, process := configured(tc.args); file != tc.file || process != tc.process {
			t.Errorf("%q: got %s, %t", tc.args, file, process)
		}
	}
}
