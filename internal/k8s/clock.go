package k8s

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-lb/holdfast/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serverClock is the clock of the API server, as the dates of its answers (RFC 9110, section 6.6.1) show it to the
// second.
type serverClock struct {
	// ahead is by how many nanoseconds it is ahead of ours; nil before the first answer.
	ahead atomic.Pointer[time.Duration]
}

// over returns a transport that reads the dates of all answers.
func (c *serverClock) over(next http.RoundTripper) http.RoundTripper { return dated{next, c} }

type dated struct {
	next  http.RoundTripper
	clock *serverClock
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}

	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		ahead := time.Until(at)
		d.clock.ahead.Store(&ahead)
	}
	return answer, nil
}

// APITime returns a time of our clock by that of the API server; the zero Time if that is not known.
func (k *Cluster) APITime(ours time.Time) time.Time {
	ahead := k.clients.clock.ahead.Load()
	if ahead == nil {
		return time.Time{}
	}
	return ours.Round(0).Add(*ahead)
}

// reported is the field of a SpeakerState that each report of its speaker changes.
const reported = `"f:observed"`

// ReportTime returns when the speaker wrote its last report, by the clock of the API server; the zero Time if that is
// not known. The controller's writes of conditions do not count.
func ReportTime(s *v1beta1.SpeakerState) (at time.Time) {
	for _, m := range s.ManagedFields {
		if m.Time != nil &&
			m.FieldsV1 != nil &&
			strings.Contains(m.FieldsV1.GetRawString(), reported) &&
			m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// reportFields stand for all fields of a report, whose names take more room than the report.
var reportFields = metav1.NewFieldsV1(`{"f:status":{"f:observed":{}}}`)

// trimReport leaves of a SpeakerState's managed fields what ReportTime reads.
func trimReport(o *v1beta1.SpeakerState, managed []metav1.ManagedFieldsEntry) {
	o.ManagedFields = managed
	at := metav1.NewTime(ReportTime(o))
	o.ManagedFields = nil

	if !at.IsZero() {
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &at, FieldsV1: reportFields}}
	}
}
