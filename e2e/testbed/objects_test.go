package testbed

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDecode(t *testing.T) {
	objects, err := Decode(
		[]byte("# a comment\n---\nkind: A\nmetadata: {name: a}\n---\n\n---\nkind: B\nmetadata:\n  name: b\n"),
	)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.GetKind()+" "+o.GetName())
	}
	if diff := cmp.Diff([]string{"A a", "B b"}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestDecodeBad(t *testing.T) {
	if _, err := Decode([]byte("kind: [")); err == nil {
		t.Error("no error")
	}
}
