package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestScaleSizes(t *testing.T) {
	for text, want := range map[string][]int{
		"3000": {3000}, "1000,3000,10000": {1000, 3000, 10000}, "3000,1000": nil, "10,10": nil, "0": nil, "x": nil,
		"": nil,
	} {
		got, err := scaleSizes(text)
		if diff := cmp.Diff(want, got); diff != "" || (err == nil) != (want != nil) {
			t.Errorf("%q: %v: -want +got\n%s", text, err, diff)
		}
	}
}

// The picture must have every value, and be XML.
func TestPicture(t *testing.T) {
	svg := picture([]point{
		{1000, map[string]float64{"scale_speaker_mib": 61}}, {3000, map[string]float64{"scale_speaker_mib": 73}},
		{10000, map[string]float64{"scale_speaker_mib": 109}},
	})
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{">61<", ">73<", ">109<", ">10000<", ">speaker_mib<"} {
		if !strings.Contains(string(svg), want) {
			t.Errorf("no %q in\n%s", want, svg)
		}
	}
}

// The CPU time of a process is what it used, and grows only as it works.
func TestCPUOf(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for start := time.Now(); time.Since(start) < 50*time.Millisecond; {
	}
	after, err := cpuOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if used := after - before; used < 10*time.Millisecond || used > 10*time.Second {
		t.Errorf("50 ms of work took %v", used)
	}
	const none = 1<<22 + 1 // above the highest number of a process
	if _, err := cpuOf(none); err == nil {
		t.Error("a process that does not exist has CPU time")
	}
}
