package chaos

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestRecordIsRead(t *testing.T) {
	_, want := run{faults: []Fault{at(Fault{Kind: API}, 20, 30)}, tenures: []tenure{{"w1", 0, 120}}}.record()
	var b bytes.Buffer
	if err := want.Write(&b); err != nil {
		t.Fatal(err)
	}
	got, err := ReadRecord(&b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("error %v, %d entries of %d", err, len(got), len(want))
	}
	if _, err := ReadRecord(strings.NewReader("{}\n{")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
}

var kept = flag.String("record", "", "check what a run has left in this `directory`")

// TestKeptRecord checks a record again, such as after a change of a rule.
func TestKeptRecord(t *testing.T) {
	if *kept == "" {
		t.Skip("no -record")
	}
	s, r, err := Load(*kept)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(Summary(s, r))
	for _, v := range Check(s, r) {
		t.Error(v)
	}
}

func TestSaved(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	s, r := run{faults: []Fault{at(Fault{Kind: API}, 20, 30)}, tenures: []tenure{{"w1", 0, 120}}}.record()
	if err := Save(dir, s, r); err != nil {
		t.Fatal(err)
	}
	gotSchedule, gotRecord, err := Load(dir)
	if err != nil || !reflect.DeepEqual(gotSchedule, s) || !reflect.DeepEqual(gotRecord, r) {
		t.Errorf("error %v, got %v and %d entries", err, gotSchedule, len(gotRecord))
	}
	if text, err := os.ReadFile(filepath.Join(dir, "schedule.txt")); err != nil || string(text) != s.String() {
		t.Errorf("error %v, got %s", err, text)
	}
}
