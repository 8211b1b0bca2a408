package k8s

import (
	"fmt"
	"strings"
	"testing"
)

// The API server refuses what speakers cannot do. Intervals are milliseconds: a number that is too small or too large for
// them was perhaps meant as another unit.
func TestBFDProfileSchema(t *testing.T) {
	var profile crd
	for _, c := range readCRDs(t) {
		if c.name == "BFDProfile" {
			profile = c
		}
	}
	for spec, want := range map[string]string{
		`{}`: "",
		`{"receiveInterval":10,"transmitInterval":60000,"detectMultiplier":2,"echoInterval":50,"echoMode":false,"passiveMode":true,"minimumTtl":254}`: "",
		`{"receiveInterval":9}`:      "spec.receiveInterval",
		`{"transmitInterval":60001}`: "spec.transmitInterval",
		`{"detectMultiplier":1}`:     "spec.detectMultiplier",
		`{"minimumTtl":255}`:         "spec.minimumTtl",
		`{"echoMode":true}`:          "echo mode is not supported",
	} {
		err := profile.Check([]byte(fmt.Sprintf(`{"apiVersion":"holdfast.dev/v1beta1","kind":"BFDProfile","metadata":{"name":"a"},"spec":%s}`, spec)))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", spec, err, want)
		}
	}
}
