package probe

import (
	"context"
	"sync/atomic"
	"time"
)

// Loaded is what clients got that do not pause between requests.
type Loaded struct {
	Good   int           `json:"good"`
	Failed int           `json:"failed"`
	Took   time.Duration `json:"took"`
}

// Load sends c.Count requests, each on a new connection, of which so many are open at once.
func Load(ctx context.Context, c Config, atOnce int) Loaded {
	var failed atomic.Int64
	start := time.Now()
	each(c.Count, atOnce, func(int) {
		k, err := c.open(ctx)
		if err != nil {
			failed.Add(1)
			return
		}
		k.conn.Close()
	})
	return Loaded{Good: c.Count - int(failed.Load()), Failed: int(failed.Load()), Took: time.Since(start)}
}
