package k8s

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestAPITime: the clock of the API server is known from its answers, also from refusals.
func TestAPITime(t *testing.T) {
	const ahead = 3 * time.Hour
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
		w.WriteHeader(http.StatusForbidden)
	}))
	defer server.Close()
	clients, err := ClientsFor(&rest.Config{Host: server.URL}, "test")
	must(t, err)
	k := &Cluster{clients: clients}
	if at := k.APITime(time.Now()); !at.IsZero() {
		t.Errorf("before any answer it is %v", at)
	}
	if _, err := clients.version(t.Context()); err == nil {
		t.Fatal("the API server answered")
	}

	start := time.Now()
	if off := k.APITime(start).Sub(start.Add(ahead).Round(0)); off > 0 || off < -10*time.Second {
		t.Errorf("it is off by %v", off)
	}
}

// TestReportTime: the time of a speaker's last write counts, and no other manager's.
func TestReportTime(t *testing.T) {
	at := time.Unix(1_000_000, 0)
	entry := func(after time.Duration, fields string) metav1.ManagedFieldsEntry {
		return metav1.ManagedFieldsEntry{Time: new(metav1.NewTime(at.Add(after))), FieldsV1: metav1.NewFieldsV1(fields)}
	}
	for name, tt := range map[string]struct {
		fields []metav1.ManagedFieldsEntry
		want   time.Time
	}{
		"unknown": {nil, time.Time{}},
		"no time": {
			[]metav1.ManagedFieldsEntry{{FieldsV1: reportFields}, {Time: new(metav1.NewTime(at))}}, time.Time{},
		},
		"the speaker's": {[]metav1.ManagedFieldsEntry{entry(0, `{"f:status":{".":{},"f:observed":{},"f:links":{}}}`)}, at},
		"and the controller's": {[]metav1.ManagedFieldsEntry{
			entry(time.Hour, `{"f:status":{"f:conditions":{}}}`), entry(0, `{"f:status":{"f:observed":{}}}`),
		}, at},
		"of two the later one": {[]metav1.ManagedFieldsEntry{
			entry(time.Hour, `{"f:status":{"f:observed":{}}}`), entry(0, `{"f:status":{"f:observed":{}}}`),
		}, at.Add(time.Hour)},
	} {
		s := &v1beta1.SpeakerState{ObjectMeta: metav1.ObjectMeta{ManagedFields: tt.fields}}
		if got := ReportTime(s); !got.Equal(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
		if _, err := trim(s); err != nil || !ReportTime(s).Equal(tt.want) || len(s.ManagedFields) > 1 {
			t.Errorf("%s: after trimming %v, want %v", name, s.ManagedFields, tt.want)
		}
	}
}
