package child

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestStamps(t *testing.T) {
	version, commit, date = "1.2.3", "8fd0094", "2026-11-23T00:00:00Z"
	want := map[string]string{"version": "1.2.3", "commit": "8fd0094", "date": "2026-11-23T00:00:00Z", "goversion": runtime.Version()}
	if diff := cmp.Diff(want, BuildLabels()); diff != "" {
		t.Errorf("labels -want +got\n%s", diff)
	}
	if got := BuildOf("speaker"); !strings.HasPrefix(got, "speaker 1.2.3, commit 8fd0094 of 2026-11-23T00:00:00Z, ") {
		t.Error(got)
	}
}
