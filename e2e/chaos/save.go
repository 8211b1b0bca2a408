package chaos

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Files of a run in its directory.
const (
	scheduleFile = "schedule.json"
	textFile     = "schedule.txt"
	recordFile   = "record.jsonl"
)

// Save writes a run into a directory, which it creates.
func Save(dir string, s Schedule, r Record) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	encoded, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, scheduleFile), encoded, 0o644); err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, textFile), []byte(s.String()), 0o644); err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, recordFile))
	if err != nil {
		return fmt.Errorf("save run: %w", err)
	}
	return errors.Join(r.Write(f), f.Close())
}

// Load reads what Save wrote.
func Load(dir string) (Schedule, Record, error) {
	var s Schedule
	encoded, err := os.ReadFile(filepath.Join(dir, scheduleFile))
	if err != nil {
		return s, nil, fmt.Errorf("load run: %w", err)
	}
	if err := json.Unmarshal(encoded, &s); err != nil {
		return s, nil, fmt.Errorf("load run: %w", err)
	}
	f, err := os.Open(filepath.Join(dir, recordFile))
	if err != nil {
		return s, nil, fmt.Errorf("load run: %w", err)
	}
	defer f.Close()
	r, err := ReadRecord(f)
	return s, r, err
}
