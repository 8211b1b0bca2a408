package probe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestLoad(t *testing.T) {
	var seen atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if seen.Add(1)%10 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, `{"pod": "a"}`)
	}))
	defer s.Close()
	got := Load(t.Context(), Config{Target: strings.TrimPrefix(s.URL, "http://"), Count: 50, Timeout: 5 * time.Second}, 4)
	if got.Good != 45 || got.Failed != 5 || got.Took <= 0 || seen.Load() != 50 {
		t.Errorf("%+v of %d requests", got, seen.Load())
	}
}
