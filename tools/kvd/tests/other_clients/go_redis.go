// go-redis, plain and as a client of a cluster, against a server of kvd:
// GO111MODULE=off GOPATH=/usr/share/gocode go run go_redis.go HOST PORT
// Needs Debian's packages golang-go and golang-gopkg-redis.v5-dev. A check that fails ends it.
package main

import (
	"fmt"
	"os"
	"time"

	"gopkg.in/redis.v5"
)

func check(what string, is bool, err error) {
	if err != nil || !is {
		fmt.Fprintln(os.Stderr, "go-redis:", what, err)
		os.Exit(1)
	}
}

func plain(address string) {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	check("SET", true, client.Set("{go}", "1", 100*time.Second).Err())
	left, err := client.TTL("{go}").Result()
	check("TTL", left > 98*time.Second && left <= 100*time.Second, err)
	var added *redis.IntCmd
	_, err = client.TxPipelined(func(pipe *redis.Pipeline) error {
		added = pipe.IncrBy("{go}", 41)
		return nil
	})
	check("MULTI", err == nil && added.Val() == 42, err)
	_, err = client.Pipelined(func(pipe *redis.Pipeline) error {
		for i := 0; i < 1000; i++ {
			pipe.Set(fmt.Sprintf("{go}%d", i), i, 0)
		}
		return nil
	})
	check("a pipeline", true, err)
	found, keys := map[string]bool{}, client.Scan(0, "{go}*", 100).Iterator()
	for keys.Next() {
		found[keys.Val()] = true
	}
	check("SCAN", len(found) == 1001, keys.Err())
	// A write in between lets the transaction fail.
	err = client.Watch(func(tx *redis.Tx) error {
		check("SET", true, client.Set("{go}", "2", 0).Err())
		_, err := tx.Pipelined(func(pipe *redis.Pipeline) error {
			pipe.Set("{go}", "3", 0)
			return nil
		})
		return err
	}, "{go}")
	check("WATCH", err == redis.TxFailedErr, nil)
	_, err = client.Get("{go}absent").Result()
	check("GET of an absent key", err == redis.Nil, nil)
	fmt.Println("go-redis, plain: passed")
}

func cluster(address string) {
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{address}})
	defer client.Close()
	for i := 0; i < 200; i++ {
		key := fmt.Sprintf("go %d", i)
		check("SET", true, client.Set(key, i, 0).Err())
		value, err := client.Get(key).Int64()
		check("GET", value == int64(i), err)
	}
	_, err := client.Pipelined(func(pipe *redis.Pipeline) error {
		for i := 0; i < 200; i++ {
			pipe.Del(fmt.Sprintf("go %d", i))
		}
		return nil
	})
	check("a pipeline", true, err)
	fmt.Println("go-redis, as of a cluster: passed")
}

func main() {
	address := os.Args[1] + ":" + os.Args[2]
	plain(address)
	cluster(address)
}
