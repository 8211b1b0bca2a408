package daemon

import (
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestBuild(t *testing.T) {
	version, commit, date = "1.2.3", "8fd0094", "2026-11-23T00:00:00Z"
	want := `# HELP holdfast_build_info The build of the program; the value is always 1.
# TYPE holdfast_build_info gauge
holdfast_build_info{commit="8fd0094",date="2026-11-23T00:00:00Z",goversion="` + runtime.Version() + `",version="1.2.3"} 1
`
	if err := testutil.CollectAndCompare(BuildInfo(), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if got := buildOf("speaker"); !strings.HasPrefix(got, "speaker 1.2.3, commit 8fd0094 of 2026-11-23T00:00:00Z, ") {
		t.Error(got)
	}
}
