package layer2

import (
	"reflect"
	"testing"
	"time"
)

// TestTimers: every timer has a default, and a configured value stays.
func TestTimers(t *testing.T) {
	var set Timers
	v := reflect.ValueOf(&set).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i).Addr().Interface().(type) {
		case *[]time.Duration:
			*f = []time.Duration{time.Duration(i + 1)}
		case *time.Duration:
			*f = time.Duration(i + 1)
		case *int:
			*f = i + 1
		}
	}
	if got := set.withDefaults(); !reflect.DeepEqual(got, set) {
		t.Errorf("what was set, %+v, became %+v", set, got)
	}
	defaults := reflect.ValueOf(Timers{}.withDefaults())
	for i := range defaults.NumField() {
		if defaults.Field(i).IsZero() {
			t.Errorf("%s has no default", defaults.Type().Field(i).Name)
		}
	}
}
