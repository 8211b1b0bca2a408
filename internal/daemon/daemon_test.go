package daemon

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"testing"
)

func parse(t *testing.T, args ...string) (Settings, error) {
	t.Helper()
	t.Setenv("POD_NAMESPACE", "")
	var s Settings
	f := flag.NewFlagSet("test", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	s.Define(f, ":1")
	return s, s.Parse(f, args)
}

func TestParse(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--namespace=ns", "surplus"},
		{"--namespace=ns", "--no-such-flag"},
		{"--namespace=ns", "--log-level=loud"},
		{"--namespace=ns", "--metrics-listen=9217"},
		{"--namespace=ns", "--metrics-listen=127.0.0.1:9219"},
		{"--namespace=ns", "--metrics-listen=:9219"},
		{"--namespace=ns", "--health-listen=[::]:9219"},
	} {
		if _, err := parse(t, args...); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	if _, err := parse(t, "--version"); !errors.Is(err, errVersion) {
		t.Errorf("--version: %v", err)
	}
	s, err := parse(t, "--namespace=ns", "--log-level=debug", "--members-secret=keys")
	if err != nil || s.Namespace != "ns" || s.LogLevel != slog.LevelDebug || s.MembersSecret != "keys" || s.HealthListen != ":1" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestMainCodes(t *testing.T) {
	for _, tt := range []struct {
		parsed, served error
		want           int
	}{
		{nil, nil, 0},
		{flag.ErrHelp, nil, 0},
		{errVersion, errors.New("served"), 0},
		{errors.New("bad flag"), nil, 2},
		{nil, errors.New("broken"), 1},
	} {
		got := Main("test", &Settings{LogLevel: slog.LevelError + 1}, func() error { return tt.parsed },
			func(context.Context, *slog.Logger) error { return tt.served })
		if got != tt.want {
			t.Errorf("parse %v, serve %v: exit code %d, want %d", tt.parsed, tt.served, got, tt.want)
		}
	}
}
